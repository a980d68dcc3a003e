//! Checks of taints and tolerations.

use k8s_openapi::api::core::v1::{PodSpec, Taint, Toleration};

/// The effect of taints that also evict running pods. Other effects concern only the scheduler.
const NO_EXECUTE: &str = "NoExecute";

/// Whether the pod tolerates each `NoExecute` taint.
pub fn are_tolerated(spec: &PodSpec, taints: &[Taint]) -> bool {
    taints
        .iter()
        .filter(|taint| taint.effect == NO_EXECUTE)
        .all(|taint| is_tolerated(spec, taint))
}

/// Whether the pod tolerates the taint.
pub fn is_tolerated(spec: &PodSpec, taint: &Taint) -> bool {
    let tolerations = spec.tolerations.as_deref().unwrap_or_default();
    tolerations.iter().any(|t| tolerates(t, taint))
}

fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let empty_or =
        |text: Option<&str>, other: &str| text.is_none_or(str::is_empty) || text == Some(other);
    let key = toleration.key.as_deref();
    if !empty_or(toleration.effect.as_deref(), &taint.effect) || !empty_or(key, &taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        None | Some("" | "Equal") => {
            let value = toleration.value.as_deref().unwrap_or_default();
            value == taint.value.as_deref().unwrap_or_default()
        }
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn tolerated(tolerations: Value, taint: Value) -> bool {
        let spec = json!({"containers": [], "tolerations": tolerations});
        let taint = serde_json::from_value(taint).unwrap();
        are_tolerated(&serde_json::from_value(spec).unwrap(), &[taint])
    }

    #[test]
    fn only_what_ends_pods_has_to_be_tolerated() {
        let taint = json!({"key": "k", "value": "v", "effect": "NoExecute"});
        assert!(!tolerated(json!([]), taint.clone()));
        assert!(tolerated(
            json!([]),
            json!({"key": "k", "effect": "NoSchedule"})
        ));
        for (toleration, enough) in [
            (json!({"operator": "Exists"}), true),
            (
                json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}),
                true,
            ),
            (
                json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}),
                false,
            ),
            (json!({"key": "k", "value": "v"}), true),
            (
                json!({"key": "k", "value": "w", "operator": "Equal"}),
                false,
            ),
            (json!({"key": "other", "operator": "Exists"}), false),
            (json!({"key": "k", "operator": "Lt", "value": "v"}), false),
        ] {
            assert_eq!(
                tolerated(json!([toleration]), taint.clone()),
                enough,
                "{toleration}"
            );
        }
    }
}
