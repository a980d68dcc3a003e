//! Pod fields as values of environment variables (`fieldRef`).

use k8s_openapi::api::core::v1::Pod;

use crate::identity;

/// Why a variable cannot have the value of a field.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FieldError {
    /// The field is not supported for environment variables.
    #[error("unsupported fieldPath: {0}")]
    Unsupported(String),
    /// The node has no address yet.
    #[error("host IP unknown")]
    NoHostIp,
}

/// Values that depend on the node where a pod runs.
#[derive(Clone, Debug, Default)]
pub struct Placement<'a> {
    /// Name of the node.
    pub node_name: &'a str,
    /// Addresses of the node, the primary one first.
    pub host_ips: &'a [String],
    /// Addresses of the pod, the primary one first.
    pub pod_ips: &'a [String],
}

/// The value of a field; empty for a label or annotation that the pod does not have.
///
/// # Errors
/// See [`FieldError`].
pub fn value(pod: &Pod, path: &str, placement: &Placement<'_>) -> Result<String, FieldError> {
    if let Some(value) = of_metadata(pod, path) {
        return Ok(value);
    }
    let spec = pod.spec.as_ref();
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    Ok(match path {
        "spec.nodeName" => placement.node_name.to_owned(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.hostIP" | "status.hostIPs" if placement.host_ips.is_empty() => {
            return Err(FieldError::NoHostIp);
        }
        "status.hostIP" => first(placement.host_ips),
        "status.hostIPs" => placement.host_ips.join(","),
        "status.podIP" => first(placement.pod_ips),
        "status.podIPs" => placement.pod_ips.join(","),
        _ => return Err(FieldError::Unsupported(path.to_owned())),
    })
}

/// The value of a field of the pod's metadata, which downward API files support too; `None` for any
/// other field.
pub fn of_metadata(pod: &Pod, path: &str) -> Option<String> {
    if let Some((field, key)) = subscript(path) {
        let map = match field {
            "metadata.labels" => &pod.metadata.labels,
            "metadata.annotations" => &pod.metadata.annotations,
            _ => return None,
        };
        let value = map.as_ref().and_then(|map| map.get(key));
        return Some(value.cloned().unwrap_or_default());
    }
    match path {
        "metadata.name" => Some(identity::name(pod).to_owned()),
        "metadata.namespace" => Some(identity::namespace(pod).to_owned()),
        "metadata.uid" => Some(pod.metadata.uid.clone().unwrap_or_default()),
        _ => None,
    }
}

/// Splits `field['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, key) = path.strip_suffix("']")?.split_once("['")?;
    (!field.is_empty()).then_some((field, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn every_field_that_a_variable_can_have() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "web", "namespace": "ns", "uid": "u",
                "labels": {"app.x/y": "z"}, "annotations": {"a": "b"}
            },
            "spec": {"serviceAccountName": "robot", "containers": []}
        }))
        .unwrap();
        let placement = Placement {
            node_name: "node",
            host_ips: &texts(&["192.0.2.1", "2001:db8::1"]),
            pod_ips: &texts(&["10.0.0.2", "fd00::2"]),
        };
        for (path, expected) in [
            ("metadata.name", Some("web")),
            ("metadata.namespace", Some("ns")),
            ("metadata.uid", Some("u")),
            ("metadata.labels['app.x/y']", Some("z")),
            ("metadata.annotations['a']", Some("b")),
            ("metadata.labels['none']", Some("")),
            ("spec.nodeName", Some("node")),
            ("spec.serviceAccountName", Some("robot")),
            ("status.hostIP", Some("192.0.2.1")),
            ("status.hostIPs", Some("192.0.2.1,2001:db8::1")),
            ("status.podIP", Some("10.0.0.2")),
            ("status.podIPs", Some("10.0.0.2,fd00::2")),
            ("status.phase", None),
            ("spec['a']", None),
        ] {
            let value = value(&pod, path, &placement);
            assert_eq!(value.ok().as_deref(), expected, "{path}");
        }
        let placement = Placement {
            host_ips: &[],
            ..placement
        };
        for path in ["status.hostIP", "status.hostIPs"] {
            // An error is retried, whereas an empty value would be permanent.
            assert_eq!(value(&pod, path, &placement), Err(FieldError::NoHostIp));
        }
    }
}
