//! Service account tokens: issued by TokenRequest, checked by TokenReview, and mounted into pods by
//! admission.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    Server,
    clock::{Clock, after},
    errors::{ApiError, Cause},
    request::{Caller, Target},
    resources,
    storage::{Key, Storage},
    strategy::text,
};

/// The default audience of tokens.
pub(super) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// The key that signs tokens. It need not be secret: it only protects against mistakes.
const SECRET: &str = "the test double's signing key";

impl Server {
    /// `serviceaccounts/token`: issues a token for audiences and a lifetime, optionally bound to an
    /// object.
    pub(super) fn request_token(
        &self,
        target: &Target,
        mut request: Value,
    ) -> Result<Value, ApiError> {
        let storage = self.storage.lock();
        let key = target.key()?;
        let account = storage
            .get(&key)
            .ok_or_else(|| ApiError::not_found(target.resource, &key.name))?;
        let seconds = request["spec"]["expirationSeconds"]
            .as_i64()
            .unwrap_or(3600);
        if seconds < 600 {
            let cause = Cause::invalid(
                "spec.expirationSeconds",
                &json!(seconds),
                "may not specify a duration less than 10 minutes",
            );
            let group = "authentication.k8s.io";
            return Err(ApiError::invalid_kind(group, "TokenRequest", "", &[cause]));
        }
        let mut audiences = request["spec"]["audiences"].clone();
        if audiences.as_array().is_none_or(Vec::is_empty) {
            audiences = json!([ISSUER]);
        }
        let now = self.clock.now();
        let mut private = json!({
            "namespace": key.namespace,
            "serviceaccount": {"name": key.name, "uid": account["metadata"]["uid"]},
        });
        let bound = &request["spec"]["boundObjectRef"];
        if bound.is_object() {
            let (kind, name) = (text(bound, "/kind"), text(bound, "/name"));
            let resource = resources::find_kind("v1", kind).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "cannot bind token to object of type v1, Kind={kind}"
                ))
            })?;
            let object = storage
                .get(&Key::new(resource, &key.namespace, name))
                .ok_or_else(|| ApiError::not_found(resource, name))?;
            let uid = text(bound, "/uid");
            if !uid.is_empty() && object["metadata"]["uid"] != uid {
                let why = format!(
                    "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
                );
                return Err(ApiError::other_object(resource, name, &why));
            }
            let claim = json!({"name": name, "uid": object["metadata"]["uid"]});
            private[kind.to_lowercase()] = claim;
        }
        let claims = json!({
            "aud": audiences, "exp": now.as_second() + seconds, "iat": now.as_second(),
            "nbf": now.as_second(), "iss": ISSUER, "jti": self.clock.uid(),
            "sub": format!("system:serviceaccount:{}:{}", key.namespace, key.name),
            "kubernetes.io": private,
        });
        request["apiVersion"] = json!("authentication.k8s.io/v1");
        request["kind"] = json!("TokenRequest");
        request["metadata"] = json!({
            "name": key.name, "namespace": key.namespace, "uid": account["metadata"]["uid"],
            "creationTimestamp": self.clock.text(),
        });
        request["spec"]["audiences"] = audiences;
        request["spec"]["expirationSeconds"] = json!(seconds);
        request["status"] = json!({
            "token": sign(&claims), "expirationTimestamp": after(now, seconds),
        });
        Ok(request)
    }

    /// The caller of a token, and those of `audiences` for which it is valid.
    pub(super) fn check_token(
        &self,
        token: &str,
        audiences: &[String],
    ) -> Option<(Caller, Vec<String>)> {
        if let Some(caller) = self.settings.lock().policy.caller_of(token) {
            return Some((caller, audiences.to_vec()));
        }
        let claims = verify(token)?;
        let issued_for = claims["aud"].as_array()?;
        let default = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() {
            &default
        } else {
            audiences
        };
        let good: Vec<String> = wanted
            .iter()
            .filter(|one| issued_for.iter().any(|audience| audience == *one))
            .cloned()
            .collect();
        if good.is_empty() || claims["exp"].as_i64()? <= self.clock.now().as_second() {
            return None;
        }
        let private = &claims["kubernetes.io"];
        let namespace = text(private, "/namespace");
        let storage = self.storage.lock();
        let lives = |kind: &str, claim: &Value| {
            let resource = resources::find_kind("v1", kind)?;
            let found = storage.get(&Key::new(resource, namespace, text(claim, "/name")))?;
            (found["metadata"]["uid"] == claim["uid"]).then_some(())
        };
        let account = &private["serviceaccount"];
        lives("ServiceAccount", account)?;
        let mut caller = Caller::new(
            text(&claims, "/sub"),
            &[
                "system:serviceaccounts",
                &format!("system:serviceaccounts:{namespace}"),
            ],
        );
        caller.uid = text(account, "/uid").to_owned();
        caller.extra.insert(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec![format!("JTI={}", text(&claims, "/jti"))],
        );
        for (kind, field) in [("Pod", "pod"), ("Secret", "secret")] {
            let claim = &private[field];
            if claim.is_object() {
                lives(kind, claim)?;
                if kind == "Pod" {
                    for (key, value) in [("pod-name", "/name"), ("pod-uid", "/uid")] {
                        caller.extra.insert(
                            format!("authentication.kubernetes.io/{key}"),
                            vec![text(claim, value).to_owned()],
                        );
                    }
                }
            }
        }
        Some((caller, good))
    }
}

/// Sets a pod's service account and, if `mount` is set, adds the volume with its token.
pub(super) fn admit_pod(
    storage: &Storage,
    namespace: &str,
    pod: &mut Value,
    clock: &Clock,
    mount: bool,
) -> Result<(), ApiError> {
    let resource = |kind: &str| {
        resources::find_kind("v1", kind).ok_or_else(|| ApiError::internal("no such kind"))
    };
    if text(pod, "/spec/serviceAccountName").is_empty() {
        pod["spec"]["serviceAccountName"] = json!("default");
    }
    let name = text(pod, "/spec/serviceAccountName").to_owned();
    pod["spec"]["serviceAccount"] = json!(name);
    let Some(account) = storage.get(&Key::new(resource("ServiceAccount")?, namespace, &name))
    else {
        let why = format!(
            "error looking up service account {namespace}/{name}: serviceaccount {name:?} not found"
        );
        return Err(ApiError::forbidden(
            resource("Pod")?,
            text(pod, "/metadata/name"),
            &why,
        ));
    };
    if pod["spec"]["imagePullSecrets"]
        .as_array()
        .is_none_or(Vec::is_empty)
        && account["imagePullSecrets"].is_array()
    {
        pod["spec"]["imagePullSecrets"] = account["imagePullSecrets"].clone();
    }
    let wanted = match &pod["spec"]["automountServiceAccountToken"] {
        Value::Bool(wanted) => *wanted,
        _ => account["automountServiceAccountToken"] != false,
    };
    if wanted && mount {
        mount_token(pod, &format!("kube-api-access-{}", clock.suffix()));
    }
    Ok(())
}

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

fn mount_token(pod: &mut Value, volume: &str) {
    let mut used = false;
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            let mounts = &mut container["volumeMounts"];
            if !mounts.is_array() {
                *mounts = json!([]);
            }
            if let Value::Array(mounts) = mounts
                && mounts.iter().all(|mount| mount["mountPath"] != TOKEN_PATH)
            {
                mounts.push(json!({"name": volume, "readOnly": true, "mountPath": TOKEN_PATH}));
                used = true;
            }
        }
    }
    if !used {
        return;
    }
    if !pod["spec"]["volumes"].is_array() {
        pod["spec"]["volumes"] = json!([]);
    }
    if let Value::Array(volumes) = &mut pod["spec"]["volumes"] {
        volumes.push(json!({"name": volume, "projected": {"defaultMode": 0o644, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace",
                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
        ]}}));
    }
}

fn signature(signed: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(format!("{SECRET}.{signed}")))
}

fn sign(claims: &Value) -> String {
    let header = json!({"alg": "HS256", "typ": "JWT"}).to_string();
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(claims.to_string())
    );
    format!("{signed}.{}", signature(&signed))
}

fn verify(token: &str) -> Option<Value> {
    let (signed, sent) = token.rsplit_once('.')?;
    let (_, claims) = signed.split_once('.')?;
    let claims = URL_SAFE_NO_PAD.decode(claims).ok()?;
    (signature(signed) == sent).then(|| serde_json::from_slice(&claims).ok())?
}
