//! Matching of the node against a pod's node selector and required node affinity.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodSpec,
};

/// Whether a node with this name and these labels matches the node selector and the required
/// affinity.
pub fn matches(spec: &PodSpec, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref();
    let required = affinity
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    selected && required.is_none_or(|selector| selects(selector, name, labels))
}

/// Whether a node with this name and these labels matches at least one of a selector's terms.
pub fn selects(selector: &NodeSelector, name: &str, labels: &BTreeMap<String, String>) -> bool {
    let mut terms = selector.node_selector_terms.iter();
    terms.any(|term| matches_term(term, name, labels))
}

/// An empty term matches no node.
fn matches_term(term: &NodeSelectorTerm, name: &str, known: &BTreeMap<String, String>) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let names = BTreeMap::from([("metadata.name".to_owned(), name.to_owned())]);
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|rule| is_met(rule, known))
        && fields.iter().all(|rule| is_met(rule, &names))
}

fn is_met(rule: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&rule.key);
    let values = rule.values.as_deref().unwrap_or_default();
    // Both sides must be integers, and there must be exactly one value.
    let compared = || -> Option<std::cmp::Ordering> {
        let [bound] = values else { return None };
        let (value, bound): (i64, i64) = (value?.parse().ok()?, bound.parse().ok()?);
        Some(value.cmp(&bound))
    };
    match rule.operator.as_str() {
        "In" => value.is_some_and(|value| values.contains(value)),
        "NotIn" => value.is_none_or(|value| !values.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fits(spec: Value) -> bool {
        let labels = [("zone", "a"), ("cores", "8")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        matches(
            &serde_json::from_value(spec).unwrap(),
            "node",
            &labels.into(),
        )
    }

    fn required(terms: Value) -> bool {
        fits(json!({"containers": [], "affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}}))
    }

    #[test]
    fn a_selector_names_labels() {
        assert!(fits(json!({"containers": []})));
        assert!(fits(
            json!({"containers": [], "nodeSelector": {"zone": "a"}})
        ));
        assert!(!fits(
            json!({"containers": [], "nodeSelector": {"zone": "a", "x": ""}})
        ));
    }

    #[test]
    fn one_term_has_to_be_met_in_whole() {
        let label = |key, operator, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        for (rules, met) in [
            (json!([label("zone", "In", &["b", "a"])]), true),
            (json!([label("zone", "NotIn", &["a"])]), false),
            (json!([label("none", "NotIn", &["a"])]), true),
            (json!([label("none", "DoesNotExist", &[])]), true),
            (json!([label("zone", "Exists", &[])]), true),
            (json!([label("cores", "Gt", &["7"])]), true),
            (json!([label("cores", "Gt", &["8"])]), false),
            (json!([label("cores", "Lt", &["9"])]), true),
            (json!([label("zone", "Lt", &["9"])]), false),
            (json!([label("zone", "Like", &["a"])]), false),
            (
                json!([label("zone", "Exists", &[]), label("none", "Exists", &[])]),
                false,
            ),
        ] {
            assert_eq!(
                required(json!([{"matchExpressions": rules}])),
                met,
                "{rules}"
            );
        }
        assert!(!required(json!([{}])));
        assert!(!required(json!([])));
        let name = |name| json!({"matchFields": [label("metadata.name", "In", &[name])]});
        assert!(required(json!([{}, name("node")])));
        assert!(!required(json!([name("other")])));
    }
}
