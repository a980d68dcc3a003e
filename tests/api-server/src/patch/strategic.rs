//! Strategic merge patch: lists of objects are merged by a merge key.

use serde_json::{Map, Value};

use crate::errors::ApiError;

/// How a list field is merged.
enum Strategy {
    /// The patch's list replaces the old one.
    Replace,
    /// By the value of this key in the elements.
    Key(&'static str),
    /// As a set of primitive values.
    Set,
}

/// The strategy of a list field, from its name and its parent's, as the API types define it.
fn strategy(kind: &str, parent: &str, field: &str) -> Strategy {
    match (parent, field) {
        (
            _,
            "containers"
            | "initContainers"
            | "ephemeralContainers"
            | "volumes"
            | "env"
            | "schedulingGates"
            | "resourceClaims"
            | "resourceClaimStatuses"
            | "allocatedResourcesStatus",
        ) => Strategy::Key("name"),
        ("spec", "imagePullSecrets") => Strategy::Key("name"),
        (_, "secrets") if kind == "ServiceAccount" => Strategy::Key("name"),
        (_, "drivers") if kind == "CSINode" => Strategy::Key("name"),
        (_, "volumeMounts") => Strategy::Key("mountPath"),
        (_, "volumeDevices") => Strategy::Key("devicePath"),
        ("spec", "ports") if kind == "Service" => Strategy::Key("port"),
        (_, "ports") if kind != "Endpoints" => Strategy::Key("containerPort"),
        (_, "conditions") if kind != "CertificateSigningRequest" => Strategy::Key("type"),
        ("status", "addresses") => Strategy::Key("type"),
        (_, "podIPs" | "hostIPs" | "hostAliases") => Strategy::Key("ip"),
        (_, "topologySpreadConstraints") => Strategy::Key("topologyKey"),
        ("metadata", "ownerReferences") => Strategy::Key("uid"),
        ("metadata", "finalizers") | ("spec", "podCIDRs") => Strategy::Set,
        _ => Strategy::Replace,
    }
}

/// Merges `patch` into `target`, an object of `kind`.
pub fn merge(kind: &str, target: &mut Value, patch: &Value) -> Result<(), ApiError> {
    let Value::Object(patch) = patch else {
        return Err(ApiError::bad_request("the patch is no object"));
    };
    merge_map(kind, "", target, patch)
}

fn merge_map(
    kind: &str,
    parent: &str,
    target: &mut Value,
    patch: &Map<String, Value>,
) -> Result<(), ApiError> {
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    match patch.get("$patch").and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            let mut whole = patch.clone();
            whole.remove("$patch");
            *target = Value::Object(whole);
            return Ok(());
        }
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some(other) => {
            return Err(ApiError::bad_request(format!(
                "Unknown patch type: {other}"
            )));
        }
    }
    let Value::Object(fields) = target else {
        return Ok(());
    };
    if let Some(retained) = patch.get("$retainKeys").and_then(Value::as_array) {
        fields.retain(|field, _| retained.iter().any(|one| one == field));
    }
    for (name, value) in patch {
        if let Some(field) = name.strip_prefix("$deleteFromPrimitiveList/") {
            if let (Some(Value::Array(list)), Some(gone)) =
                (fields.get_mut(field), value.as_array())
            {
                list.retain(|one| !gone.contains(one));
            }
        } else if name.starts_with('$') {
            // `$setElementOrder` is handled below with its list, the other directives above.
        } else if value.is_null() {
            fields.remove(name);
        } else {
            let slot = fields.entry(name.clone()).or_insert(Value::Null);
            match value {
                Value::Object(value) => merge_map(kind, name, slot, value)?,
                Value::Array(value) => merge_list(kind, parent, name, slot, value)?,
                plain => *slot = plain.clone(),
            }
        }
    }
    for (name, order) in patch {
        if let (Some(field), Value::Array(order)) = (name.strip_prefix("$setElementOrder/"), order)
            && let Some(Value::Array(list)) = fields.get_mut(field)
        {
            reorder(&strategy(kind, parent, field), list, order);
        }
    }
    Ok(())
}

fn merge_list(
    kind: &str,
    parent: &str,
    field: &str,
    target: &mut Value,
    patch: &[Value],
) -> Result<(), ApiError> {
    let strategy = strategy(kind, parent, field);
    if patch.iter().any(|one| one["$patch"] == "replace") {
        // Unchanged, because a merge key may occur twice.
        let kept = patch.iter().filter(|one| one.get("$patch").is_none());
        *target = kept.cloned().collect();
        return Ok(());
    }
    let existing = match target {
        Value::Array(existing) => existing,
        _ => {
            *target = Value::Array(Vec::new());
            match target {
                Value::Array(list) => list,
                _ => return Ok(()),
            }
        }
    };
    match strategy {
        Strategy::Replace => *existing = patch.to_vec(),
        Strategy::Set => {
            for one in patch {
                if !existing.contains(one) {
                    existing.push(one.clone());
                }
            }
        }
        Strategy::Key(key) => {
            for one in patch {
                let Value::Object(element) = one else {
                    return Err(ApiError::bad_request(format!(
                        "{field}: elements must be objects"
                    )));
                };
                let wanted = &one[key];
                if wanted.is_null() {
                    if element.contains_key("$patch") {
                        continue;
                    }
                    return Err(ApiError::bad_request(format!(
                        "map: {one} does not contain declared merge key: {key}"
                    )));
                }
                if one["$patch"] == "delete" {
                    existing.retain(|had| had[key] != *wanted);
                    continue;
                }
                let index = existing.iter().position(|had| had[key] == *wanted);
                let index = index.unwrap_or_else(|| {
                    existing.push(Value::Object(Map::new()));
                    existing.len() - 1
                });
                merge_map(kind, field, &mut existing[index], element)?;
            }
        }
    }
    Ok(())
}

/// Sorts the elements that `order` names accordingly. Other elements keep their place among them.
fn reorder(strategy: &Strategy, list: &mut Vec<Value>, order: &[Value]) {
    let place = |element: &Value| match strategy {
        Strategy::Key(key) => order.iter().position(|one| one[*key] == element[*key]),
        Strategy::Set => order.iter().position(|one| one == element),
        Strategy::Replace => None,
    };
    if matches!(strategy, Strategy::Replace) {
        return;
    }
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for (index, element) in list.drain(..).enumerate() {
        match place(&element) {
            Some(place) => named.push((place, index, element)),
            None => others.push((index, element)),
        }
    }
    named.sort_by_key(|(place, _, _)| *place);
    let mut others = others.into_iter().peekable();
    for (_, index, element) in named {
        while let Some((_, other)) = others.next_if(|(other, _)| *other < index) {
            list.push(other);
        }
        list.push(element);
    }
    list.extend(others.map(|(_, element)| element));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(kind: &str, mut target: Value, patch: Value) -> Value {
        merge(kind, &mut target, &patch).unwrap();
        target
    }

    #[test]
    fn conditions_are_merged_by_type_in_the_order_asked_for() {
        let pod = json!({"status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False", "reason": "x"},
        ]}});
        let patch = json!({"metadata": {"uid": "u"}, "status": {
            "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "Ready"}, {"type": "PodScheduled"}],
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True", "reason": null}],
            "phase": "Running",
        }});
        assert_eq!(
            merged("Pod", pod, patch)["status"],
            json!({"phase": "Running", "conditions": [
                {"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True"},
            ]})
        );
    }

    #[test]
    fn an_image_is_set_in_the_container_of_that_name() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "image": "one", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "two"},
        ]}});
        let patch = json!({"spec": {
            "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
            "containers": [{"name": "b", "image": "three", "ports": [{"containerPort": 80}]}],
        }});
        assert_eq!(
            merged("Pod", pod, patch)["spec"]["containers"],
            json!([
                {"name": "a", "image": "one", "env": [{"name": "X", "value": "1"}]},
                {"name": "b", "image": "three", "ports": [{"containerPort": 80}]},
            ])
        );
    }

    #[test]
    fn directives_delete_replace_and_retain() {
        let object = json!({
            "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"},
                "ownerReferences": [{"uid": "1"}, {"uid": "2"}]},
            "spec": {"volumes": [{"name": "v", "emptyDir": {}}], "nodeSelector": {"old": "1"}},
        });
        let patch = json!({
            "metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "labels": {"x": null},
                "ownerReferences": [{"$patch": "delete", "uid": "1"}]},
            "spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}],
                "nodeSelector": {"$patch": "replace", "new": "1"}},
        });
        assert_eq!(
            merged("Pod", object, patch),
            json!({
                "metadata": {"finalizers": ["b"], "labels": {"y": "2"}, "ownerReferences": [{"uid": "2"}]},
                "spec": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}], "nodeSelector": {"new": "1"}},
            })
        );
    }

    #[test]
    fn addresses_are_merged_by_what_they_are() {
        let status = json!({"status": {"podIPs": [{"ip": "10.0.0.1"}], "hostIPs": [{"ip": "10.0.0.2"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}});
        let patch = json!({"status": {
            "podIPs": [{"$patch": "delete", "ip": "10.0.0.1"}, {"ip": "10.0.0.3"}],
            "hostIPs": [{"ip": "10.0.0.2"}],
            "$setElementOrder/addresses": [{"type": "Hostname"}, {"type": "InternalIP"}],
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.4"}],
        }});
        assert_eq!(
            merged("Node", status, patch)["status"],
            json!({"podIPs": [{"ip": "10.0.0.3"}], "hostIPs": [{"ip": "10.0.0.2"}], "addresses": [
                {"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.4"},
            ]})
        );
        let pod = json!({"spec": {"tolerations": [{"key": "a"}],
            "containers": [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]}});
        let patch = json!({"spec": {"tolerations": [{"key": "b"}],
            "containers": [{"name": "c", "env": [{"name": "B", "value": null, "valueFrom": {}}]}]}});
        assert_eq!(
            merged("Pod", pod, patch)["spec"],
            json!({"tolerations": [{"key": "b"}],
                "containers": [{"name": "c", "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {}}]}]})
        );
    }

    #[test]
    fn lists_without_a_merge_key_are_replaced() {
        let node = json!({"spec": {"taints": [{"key": "a"}]}, "status": {"images": [1, 2]}});
        let patch = json!({"spec": {"taints": [{"key": "b"}]}, "status": {"images": [3]}});
        let merged = merged("Node", node, patch);
        assert_eq!(merged["spec"]["taints"], json!([{"key": "b"}]));
        assert_eq!(merged["status"]["images"], json!([3]));
    }
}
