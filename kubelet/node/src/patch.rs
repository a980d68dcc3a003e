//! The difference of two node objects as a strategic merge patch of the status subresource:
//! metadata and status, never the spec.

use k8s_openapi::api::core::v1::Node;
use kubelet_pod_spec::json;
use serde_json::{Map, Value, json};

/// The patch that turns `old` into `new`.
pub fn between(old: &Node, new: &Node) -> Value {
    // Serializing to memory cannot fail.
    let value = |node: &Node| json::to_value(node).unwrap_or_default();
    let (old, new) = (value(old), value(new));
    let mut patch = Map::new();
    for field in ["metadata", "status"] {
        let empty = json!({});
        let of = |node: &Value| node.get(field).cloned().unwrap_or_else(|| empty.clone());
        let (old, new) = (of(&old), of(&new));
        if let Some(difference) = difference(&old, &new, field) {
            patch.insert(field.to_owned(), difference);
        }
    }
    Value::Object(patch)
}

fn difference(old: &Value, new: &Value, path: &str) -> Option<Value> {
    if old == new {
        return None;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let mut changes = Map::new();
            for (key, value) in new {
                let path = format!("{path}.{key}");
                let before = old.get(key).unwrap_or(&Value::Null);
                if let Some(change) = difference(before, value, &path) {
                    changes.insert(key.clone(), change);
                }
            }
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                changes.insert(key.clone(), Value::Null);
            }
            Some(Value::Object(changes))
        }
        // Conditions are merged by type, so unchanged ones and those of other components can be
        // left out.
        (_, Value::Array(new)) if path == "status.conditions" => {
            let before = old.as_array().map(Vec::as_slice).unwrap_or_default();
            let changed: Vec<Value> = new
                .iter()
                .filter(|condition| !before.contains(condition))
                .cloned()
                .collect();
            Some(Value::Array(changed))
        }
        // Addresses are merged by type as well, but on dual-stack nodes a type occurs twice; so the
        // patch replaces the whole list.
        (_, Value::Array(new)) if path == "status.addresses" => {
            let mut addresses = vec![json!({"$patch": "replace"})];
            addresses.extend(new.iter().cloned());
            Some(Value::Array(addresses))
        }
        (_, new) => Some(new.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(json: Value) -> Node {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn only_what_changed_is_sent() {
        let old = node(json!({
            "metadata": {"name": "n", "labels": {"a": "1", "b": "2"}},
            "spec": {"unschedulable": true},
            "status": {
                "capacity": {"cpu": "1", "old": "1"},
                "conditions": [
                    {"type": "NetworkUnavailable", "status": "False"},
                    {"type": "Ready", "status": "False"},
                ],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "images": [{"names": ["a"]}],
            },
        }));
        let new = node(json!({
            "metadata": {"name": "n", "labels": {"a": "2", "b": "2"}},
            "spec": {},
            "status": {
                "capacity": {"cpu": "1"},
                "conditions": [
                    {"type": "NetworkUnavailable", "status": "False"},
                    {"type": "Ready", "status": "True"},
                ],
                "addresses": [
                    {"type": "InternalIP", "address": "10.0.0.1"},
                    {"type": "InternalIP", "address": "fd00::1"},
                ],
                "images": [{"names": ["a"]}],
            },
        }));
        assert_eq!(
            between(&old, &new),
            json!({
                "metadata": {"labels": {"a": "2"}},
                "status": {
                    "capacity": {"old": null},
                    "conditions": [{"type": "Ready", "status": "True"}],
                    "addresses": [
                        {"$patch": "replace"},
                        {"type": "InternalIP", "address": "10.0.0.1"},
                        {"type": "InternalIP", "address": "fd00::1"},
                    ],
                },
            })
        );
        assert_eq!(between(&new, &new), json!({}));
    }
}
