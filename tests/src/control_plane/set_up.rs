//! The objects that kubeadm creates in a new cluster for its nodes: a bootstrap token and the RBAC
//! bindings for certificate signing requests.

use std::time::Duration;

use anyhow::{Result, bail};
use hyper::Request;
use kube::{Client, client::Body};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{BOOTSTRAPPERS, TOKEN, send};

/// The user name of the API server's client of kubelets.
pub(super) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";

/// The deadline for the controllers to create the objects of a namespace.
const SOON: Duration = Duration::from_secs(60);

/// Creates the objects, and waits until pods can be created in the namespace `default`.
pub(super) async fn cluster(client: Client) -> Result<()> {
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    create(&client, secrets, &bootstrap_token()).await?;
    let certificates = "system:certificates.k8s.io:certificatesigningrequests";
    for (name, role, kind, subject) in [
        (
            "kubeadm:kubelet-bootstrap",
            "system:node-bootstrapper",
            "Group",
            BOOTSTRAPPERS,
        ),
        (
            "kubeadm:node-autoapprove-bootstrap",
            &format!("{certificates}:nodeclient"),
            "Group",
            BOOTSTRAPPERS,
        ),
        (
            "kubeadm:node-autoapprove-certificate-rotation",
            &format!("{certificates}:selfnodeclient"),
            "Group",
            "system:nodes",
        ),
        (
            "kubelet-api-admin",
            "system:kubelet-api-admin",
            "User",
            KUBELET_CLIENT,
        ),
    ] {
        let group = "rbac.authorization.k8s.io";
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": group, "kind": kind, "name": subject}],
        });
        create(&client, bindings, &binding).await?;
    }
    await_controllers(&client).await
}

fn bootstrap_token() -> Value {
    let (id, secret) = TOKEN.split_once('.').unwrap_or_default();
    json!({
        "metadata": {"name": format!("bootstrap-token-{id}")},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
            "auth-extra-groups": BOOTSTRAPPERS,
        },
    })
}

async fn create(client: &Client, path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(Body::from(object.to_string().into_bytes()))?;
    match send(client.clone(), request).await? {
        (201, _) => Ok(()),
        (code, answer) => bail!("POST {path}: {code}: {answer}"),
    }
}

/// Waits for the objects that controllers create in the namespace. Pods are rejected without the
/// service account and do not start without the config map.
async fn await_controllers(client: &Client) -> Result<()> {
    let deadline = Instant::now() + SOON;
    for object in ["serviceaccounts/default", "configmaps/kube-root-ca.crt"] {
        let path = format!("/api/v1/namespaces/default/{object}");
        loop {
            let request = Request::get(&path).body(Body::empty())?;
            match send(client.clone(), request).await? {
                (200, _) => break,
                (code, answer) if Instant::now() > deadline => bail!("{path}: {code}: {answer}"),
                _ => sleep(Duration::from_millis(50)).await,
            }
        }
    }
    Ok(())
}
