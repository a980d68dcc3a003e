//! `--node-labels`: the labels that a kubelet may set on its own node.

use std::collections::BTreeMap;

use kubelet_pod_spec::names;
use serde_json::Value;

/// Labels in Kubernetes' own namespaces that a kubelet may set.
const ALLOWED: &[&str] = &[
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Kubernetes' own namespaces in which a kubelet may set any label.
const NAMESPACES: &[&str] = &["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The labels in the flag's value.
pub(super) fn node_labels(value: Option<&Value>) -> Result<BTreeMap<String, String>, String> {
    let mut labels = BTreeMap::new();
    for (key, value) in value.and_then(Value::as_object).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let fault = |rule: &str| format!("--node-labels: invalid value {key}={value}: {rule}");
        names::qualified_name(key).map_err(fault)?;
        names::label_value(value).map_err(fault)?;
        if !is_allowed(key) {
            return Err(fault(&format!(
                "labels in the namespaces kubernetes.io and k8s.io must begin with {} or be one of: {}",
                NAMESPACES.join(", "),
                ALLOWED.join(", ")
            )));
        }
        labels.insert(key.clone(), value.to_owned());
    }
    Ok(labels)
}

fn is_allowed(key: &str) -> bool {
    let Some((namespace, _)) = key.split_once('/') else {
        return true;
    };
    let is_in = |parent: &str| {
        namespace
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !(is_in("kubernetes.io") || is_in("k8s.io"))
        || ALLOWED.contains(&key)
        || NAMESPACES.iter().any(|namespace| is_in(namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_may_not_take_the_labels_of_others() {
        for (key, allowed) in [
            ("tier", true),
            ("example.com/tier", true),
            ("notkubernetes.io/tier", true),
            ("node.kubernetes.io/tier", true),
            ("a.kubelet.kubernetes.io/tier", true),
            ("topology.kubernetes.io/zone", true),
            ("node-role.kubernetes.io/control-plane", false),
            ("node-restriction.kubernetes.io/a", false),
            ("k8s.io/a", false),
        ] {
            let result = node_labels(Some(&json!({key: "a"})));
            assert_eq!(result.is_ok(), allowed, "{key}: {result:?}");
        }
        assert!(node_labels(Some(&json!({"a": "-"}))).is_err());
        assert_eq!(node_labels(None), Ok(BTreeMap::new()));
    }
}
