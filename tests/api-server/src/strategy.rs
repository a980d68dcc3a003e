//! The processing of objects on writes: defaults, preserved fields and validation, for each
//! resource.

use serde_json::{Value, json};

use super::{
    clock::Clock,
    errors::{ApiError, Cause},
    pods, quantities,
    request::{Caller, Target},
    resources::Resource,
};

/// Prepares a new object.
pub(super) fn create(
    resource: &'static Resource,
    object: &mut Value,
    clock: &Clock,
    caller: &Caller,
) -> Result<(), ApiError> {
    let name = text(object, "/metadata/name").to_owned();
    quantities::canonicalize(resource.kind, object);
    match resource.kind {
        "Pod" => {
            pods::defaults::apply(&mut object["spec"]);
            let mirror =
                object["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
            pods::defaults::admit(&mut object["spec"], mirror)
                .map_err(|why| ApiError::forbidden(resource, &name, &why))?;
            let class = pods::qos_class(&object["spec"]);
            object["status"] = json!({"phase": "Pending", "qosClass": class});
            let causes = pods::validation::create(object);
            if !causes.is_empty() {
                return Err(ApiError::invalid(resource, &name, &causes));
            }
        }
        "Namespace" => {
            object["spec"] = json!({"finalizers": ["kubernetes"]});
            object["status"] = json!({"phase": "Active"});
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(name);
        }
        "PersistentVolume" => {
            object["status"] = json!({"phase": "Pending"});
            default(object, "/spec", "volumeMode", json!("Filesystem"));
            default(
                object,
                "/spec",
                "persistentVolumeReclaimPolicy",
                json!("Retain"),
            );
        }
        "PersistentVolumeClaim" => {
            object["status"] = json!({"phase": "Pending"});
            default(object, "/spec", "volumeMode", json!("Filesystem"));
        }
        "Service" => default_service(object, clock),
        "Secret" => {
            default(object, "", "type", json!("Opaque"));
            if let Some(plain) = object["stringData"].as_object().cloned() {
                use base64::Engine as _;
                for (key, value) in plain {
                    let value = value.as_str().unwrap_or_default();
                    let coded = base64::engine::general_purpose::STANDARD.encode(value);
                    object["data"][key] = json!(coded);
                }
            }
            remove(object, "stringData");
        }
        "CertificateSigningRequest" => {
            if object["spec"]["usages"]
                .as_array()
                .is_none_or(Vec::is_empty)
            {
                let cause = Cause::required("spec.usages", "");
                return Err(ApiError::invalid(resource, &name, &[cause]));
            }
            object["status"] = json!({});
            object["spec"]["username"] = json!(caller.user);
            object["spec"]["groups"] = json!(caller.groups);
            if !caller.uid.is_empty() {
                object["spec"]["uid"] = json!(caller.uid);
            }
        }
        "CSINode" if object["spec"]["drivers"] == json!([]) => {
            object["spec"]["drivers"] = Value::Null;
        }
        // A kubelet registers its node together with the status.
        "Node" => {}
        _ if resource.has("status") => remove(object, "status"),
        _ => {}
    }
    Ok(())
}

fn default_service(service: &mut Value, clock: &Clock) {
    service["status"] = json!({"loadBalancer": {}});
    default(service, "/spec", "type", json!("ClusterIP"));
    default(service, "/spec", "sessionAffinity", json!("None"));
    let ports = service.pointer_mut("/spec/ports");
    for port in ports.and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["port"].clone();
        default(port, "", "protocol", json!("TCP"));
        default(port, "", "targetPort", number);
    }
    if service["spec"]["type"] != "ExternalName" {
        let address = clock.service_address();
        default(service, "/spec", "clusterIP", json!(address));
        let address = service["spec"]["clusterIP"].clone();
        default(service, "/spec", "clusterIPs", json!([address]));
        default(service, "/spec", "ipFamilies", json!(["IPv4"]));
        default(service, "/spec", "ipFamilyPolicy", json!("SingleStack"));
        default(service, "/spec", "internalTrafficPolicy", json!("Cluster"));
    }
}

/// Combines the caller's object with the stored one. A subresource changes only its part.
pub(super) fn update(target: &Target, old: &Value, mut wanted: Value) -> Result<Value, ApiError> {
    let resource = target.resource;
    keep_metadata(old, &mut wanted);
    let name = text(old, "/metadata/name");
    let refuse = |causes: Vec<Cause>| {
        if causes.is_empty() {
            Ok(())
        } else {
            Err(ApiError::invalid(resource, name, &causes))
        }
    };
    if wanted["metadata"]["uid"] != old["metadata"]["uid"] {
        let uid = wanted["metadata"]["uid"].clone();
        refuse(vec![Cause::invalid(
            "metadata.uid",
            &uid,
            "field is immutable",
        )])?;
    }
    let pod = resource.kind == "Pod";
    if pod {
        pods::defaults::apply(&mut wanted["spec"]);
        pods::defaults::complete_status(&mut wanted["status"]);
    }
    quantities::canonicalize(resource.kind, &mut wanted);
    let mut next = match target.subresource.as_str() {
        "" => {
            if resource.has("status") {
                copy(old, &mut wanted, "status");
            }
            if pod {
                copy(&old["spec"], &mut wanted["spec"], "ephemeralContainers");
                refuse(pods::validation::update(old, &wanted))?;
            }
            if resource.kind == "Secret" || resource.kind == "ConfigMap" {
                refuse(immutable_data(old, &wanted))?;
            }
            wanted
        }
        "status" => {
            let mut next = wanted;
            for field in old.as_object().into_iter().flat_map(|fields| fields.keys()) {
                if field != "status" && field != "metadata" {
                    copy(old, &mut next, field);
                }
            }
            copy(&old["metadata"], &mut next["metadata"], "ownerReferences");
            copy(&old["metadata"], &mut next["metadata"], "deletionTimestamp");
            if pod && next["status"]["qosClass"].is_null() {
                copy(&old["status"], &mut next["status"], "qosClass");
            }
            if pod {
                refuse(pods::status_validation::update(old, &next))?;
            }
            next
        }
        "resize" => {
            refuse(pods::validation::resize(old, &wanted))?;
            let mut next = old.clone();
            copy(&wanted, &mut next, "spec");
            next
        }
        "ephemeralcontainers" => {
            refuse(pods::validation::ephemeral(old, &wanted))?;
            let mut next = old.clone();
            copy(&wanted["spec"], &mut next["spec"], "ephemeralContainers");
            next
        }
        "approval" => {
            let mut next = old.clone();
            copy(&wanted["status"], &mut next["status"], "conditions");
            next
        }
        "finalize" => {
            let mut next = old.clone();
            copy(&wanted["spec"], &mut next["spec"], "finalizers");
            next
        }
        _ => return Err(ApiError::method_not_allowed()),
    };
    if resource.generations
        && next["spec"] != old["spec"]
        && let Some(generation) = old["metadata"]["generation"].as_i64()
    {
        next["metadata"]["generation"] = json!(generation + 1);
    }
    Ok(next)
}

/// Restores the metadata fields that callers may not change.
fn keep_metadata(old: &Value, wanted: &mut Value) {
    let (old, wanted) = (&old["metadata"], &mut wanted["metadata"]);
    for field in ["creationTimestamp", "generation", "name", "namespace"] {
        copy(old, wanted, field);
    }
    for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
        copy(old, wanted, field);
    }
    if wanted["uid"].as_str().unwrap_or_default().is_empty() {
        copy(old, wanted, "uid");
    }
    copy(old, wanted, "resourceVersion");
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        let empty = match &wanted[field] {
            Value::Null => true,
            Value::Object(map) => map.is_empty(),
            Value::Array(list) => list.is_empty(),
            _ => false,
        };
        if empty {
            remove(wanted, field);
        }
    }
}

fn immutable_data(old: &Value, new: &Value) -> Vec<Cause> {
    if old["immutable"] != true {
        return Vec::new();
    }
    let mut causes = Vec::new();
    for field in ["data", "binaryData", "immutable"] {
        if old[field] != new[field] {
            let why = "field is immutable when `immutable` is set";
            causes.push(Cause::forbidden(field, why));
        }
    }
    causes
}

/// The string at a JSON pointer; empty if there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let found = object.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}

/// Copies a field from `from` to `to`, or removes it if `from` does not have it.
pub(super) fn copy(from: &Value, to: &mut Value, field: &str) {
    match from.get(field) {
        Some(value) => to[field] = value.clone(),
        None => remove(to, field),
    }
}

/// Removes a field.
pub(super) fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove(field);
    }
}

fn default(object: &mut Value, pointer: &str, field: &str, value: Value) {
    if let Some(fields) = object.pointer_mut(pointer).and_then(Value::as_object_mut) {
        let slot = fields.entry(field).or_insert(Value::Null);
        if slot.is_null() || slot == "" {
            *slot = value;
        }
    }
}
