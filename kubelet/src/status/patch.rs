//! The strategic merge patch of a pod's status. It contains the differences in the fields that the
//! kubelet owns.

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{
    identity::{self, PodUid},
    json, quantity,
};
use serde_json::{Map, Value, json};

use super::{Report, conditions, is_terminal};

/// Fields that are replaced as a whole.
const WHOLE: [&str; 8] = [
    "observedGeneration",
    "hostIP",
    "podIP",
    "startTime",
    "qosClass",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
];
/// Fields that are merged entry by entry.
const MERGED: [&str; 2] = ["allocatedResources", "resources"];
/// Lists of addresses, merged by [`ADDRESS_KEY`].
const ADDRESSES: [&str; 2] = ["hostIPs", "podIPs"];
const ADDRESS_KEY: &str = "ip";
/// The phase and the fields that go with it.
const PHASE: [&str; 3] = ["phase", "reason", "message"];
/// Condition that other components set, and also the kubelet when it ends a pod.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The patch that turns the status of `server`, the API server's copy of the pod, into the reported
/// one; `None` when they are equal.
///
/// A terminal phase is reported only once no container runs any more, and is never taken back.
/// Conditions of other owners are kept.
///
/// # Errors
/// A status cannot be serialised.
pub(super) fn between(server: &Pod, report: &Report) -> Result<Option<Value>, serde_json::Error> {
    let old = server.status.clone().unwrap_or_default();
    let theirs = object(json::to_value(&old)?);
    let ours = object(json::to_value(&*report.status)?);
    let ends = is_terminal(&report.status) && !is_terminal(&old);
    let mut patch = Map::new();

    // A static pod may run again with the same mirror pod.
    let is_over = is_terminal(&old) && !identity::is_mirror(server);
    let keeps_phase = (ends && !report.stopped) || (is_over && !is_terminal(&report.status));
    if !keeps_phase {
        for field in PHASE {
            replace(&mut patch, field, &theirs, &ours);
        }
    }
    for field in WHOLE {
        // `startTime` never changes, and `observedGeneration` never decreases.
        let stays = match field {
            "startTime" => old.start_time.is_some(),
            "observedGeneration" => old.observed_generation >= report.status.observed_generation,
            _ => false,
        };
        if !stays {
            replace(&mut patch, field, &theirs, &ours);
        }
    }
    for field in MERGED {
        let (old, new) = (present(theirs.get(field)), present(ours.get(field)));
        match (old, new) {
            (Some(Value::Object(old)), Some(Value::Object(new))) => {
                let merged = differences(old, new, holds_quantities(field));
                if !merged.is_empty() {
                    patch.insert(field.to_owned(), merged.into());
                }
            }
            _ => replace(&mut patch, field, &theirs, &ours),
        }
    }
    for field in ADDRESSES {
        addresses(&mut patch, field, list(&theirs, field), list(&ours, field));
    }
    let disrupts = ends && report.stopped;
    let (theirs, ours) = (list(&theirs, "conditions"), list(&ours, "conditions"));
    set_conditions(&mut patch, theirs, ours, disrupts);

    if patch.is_empty() {
        return Ok(None);
    }
    // The UID is a precondition: a new pod of the same name must not get this status.
    let uid = PodUid::of(server);
    Ok(Some(
        json!({"metadata": {"uid": uid.as_str()}, "status": patch}),
    ))
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

/// A value, unless it is empty: the API server omits empty values.
fn present(value: Option<&Value>) -> Option<&Value> {
    value.filter(|value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        _ => true,
    })
}

fn list<'a>(status: &'a Map<String, Value>, field: &str) -> &'a [Value] {
    match status.get(field) {
        Some(Value::Array(list)) => list,
        _ => &[],
    }
}

/// Whether a field is a map of quantities, which the API server rewrites in canonical form.
fn holds_quantities(field: &str) -> bool {
    matches!(field, "requests" | "limits" | "allocatedResources")
}

/// Whether two values are equal in meaning.
fn same(old: Option<&Value>, new: Option<&Value>, quantities: bool) -> bool {
    match (present(old), present(new)) {
        (None, None) => true,
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let fields = old.keys().chain(new.keys());
            fields.into_iter().all(|field| {
                let quantities = quantities || holds_quantities(field);
                same(old.get(field), new.get(field), quantities)
            })
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            let mut pairs = old.iter().zip(new);
            old.len() == new.len() && pairs.all(|(old, new)| same(Some(old), Some(new), quantities))
        }
        (Some(Value::String(old)), Some(Value::String(new))) if quantities => {
            old == new || quantity::parse(old).is_ok_and(|old| quantity::parse(new) == Ok(old))
        }
        (old, new) => old == new,
    }
}

/// Sets a field if it differs.
fn replace(
    patch: &mut Map<String, Value>,
    field: &str,
    theirs: &Map<String, Value>,
    ours: &Map<String, Value>,
) {
    let (old, new) = (theirs.get(field), ours.get(field));
    if !same(old, new, holds_quantities(field)) {
        let new = present(new).cloned().unwrap_or(Value::Null);
        patch.insert(field.to_owned(), new);
    }
}

/// The merge patch from `old` to `new`.
fn differences(
    old: &Map<String, Value>,
    new: &Map<String, Value>,
    quantities: bool,
) -> Map<String, Value> {
    let mut merged = Map::new();
    for field in old
        .keys()
        .filter(|field| present(new.get(*field)).is_none())
    {
        if present(old.get(field)).is_some() {
            merged.insert(field.clone(), Value::Null);
        }
    }
    for (field, value) in new {
        let quantities = quantities || holds_quantities(field);
        if same(old.get(field), Some(value), quantities) || present(Some(value)).is_none() {
            continue;
        }
        let value = match (old.get(field), value) {
            (Some(Value::Object(old)), Value::Object(new)) => {
                differences(old, new, quantities).into()
            }
            _ => value.clone(),
        };
        merged.insert(field.clone(), value);
    }
    merged
}

fn addresses(patch: &mut Map<String, Value>, field: &str, theirs: &[Value], ours: &[Value]) {
    if theirs == ours {
        return;
    }
    let mut elements: Vec<Value> = ours.to_vec();
    elements.retain(|address| !theirs.contains(address));
    let gone = theirs.iter().filter(|address| !ours.contains(address));
    elements.extend(gone.map(|address| delete(ADDRESS_KEY, &address[ADDRESS_KEY])));
    if !elements.is_empty() {
        patch.insert(field.to_owned(), elements.into());
    }
    patch.insert(format!("$setElementOrder/{field}"), ours.into());
}

fn delete(key: &str, value: &Value) -> Value {
    json!({"$patch": "delete", key: value})
}

fn type_of(condition: &Value) -> &str {
    condition["type"].as_str().unwrap_or_default()
}

fn set_conditions(
    patch: &mut Map<String, Value>,
    theirs: &[Value],
    ours: &[Value],
    disrupts: bool,
) {
    let is_ours = |condition: &&Value| {
        let type_ = type_of(condition);
        conditions::is_kubelets(type_) || (disrupts && type_ == DISRUPTION_TARGET)
    };
    let mut elements = Vec::new();
    for condition in ours.iter().filter(is_ours) {
        let type_ = type_of(condition);
        let old = theirs.iter().find(|old| type_of(old) == type_);
        elements.extend(set_condition(old, condition));
    }
    let is_kept = |old: &&Value| {
        let type_ = type_of(old);
        !conditions::is_kubelets(type_) || ours.iter().any(|new| type_of(new) == type_)
    };
    let gone = theirs.iter().filter(|old| !is_kept(old));
    elements.extend(gone.map(|old| delete("type", &old["type"])));
    if elements.is_empty() {
        return;
    }
    // Conditions of other owners come first, as upstream.
    let others = theirs
        .iter()
        .filter(|old| !conditions::is_kubelets(type_of(old)));
    let mut order: Vec<&str> = others.map(type_of).collect();
    for condition in ours.iter().filter(is_ours) {
        if !order.contains(&type_of(condition)) {
            order.push(type_of(condition));
        }
    }
    let order: Vec<Value> = order.iter().map(|type_| json!({"type": type_})).collect();
    patch.insert("conditions".to_owned(), elements.into());
    patch.insert("$setElementOrder/conditions".to_owned(), order.into());
}

/// The merge patch of a condition; `None` if it is unchanged.
fn set_condition(old: Option<&Value>, new: &Value) -> Option<Value> {
    let (Some(Value::Object(old)), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let mut new = new.clone();
    // A new probe time alone is no change, and without a transition its time is kept.
    new.remove("lastProbeTime");
    if same(old.get("status"), new.get("status"), false)
        && let Some(since) = old.get("lastTransitionTime")
    {
        new.insert("lastTransitionTime".to_owned(), since.clone());
    }
    let mut old = old.clone();
    old.remove("lastProbeTime");
    let mut differences = differences(&old, &new, false);
    if differences.is_empty() {
        return None;
    }
    differences.insert("type".to_owned(), new.get("type").cloned()?);
    Some(Value::Object(differences))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const CONTAINER: &str =
        r#"{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0}"#;

    /// The `status` part of the patch.
    fn patch(server: Value, ours: Value, stopped: bool) -> Value {
        let server: Pod =
            serde_json::from_value(json!({"metadata": {"uid": "u"}, "status": server})).unwrap();
        let report = Report {
            changed: tokio::time::Instant::now(),
            status: Arc::new(serde_json::from_value(ours).unwrap()),
            version: 1,
            stopped,
            finished: false,
        };
        let patch = between(&server, &report).unwrap();
        let Some(mut patch) = patch else {
            return Value::Null;
        };
        assert_eq!(patch["metadata"], json!({"uid": "u"}));
        patch["status"].take()
    }

    #[test]
    fn what_says_the_same_is_not_sent() {
        let container: Value = serde_json::from_str(CONTAINER).unwrap();
        let mut theirs = container.clone();
        theirs["resources"] = json!({"limits": {"cpu": "100m"}});
        let mut ours = container;
        ours["resources"] = json!({"limits": {"cpu": "0.1"}});
        let condition =
            |at: &str| json!({"type": "Ready", "status": "True", "lastTransitionTime": at});
        let server = json!({
            "phase": "Running", "startTime": "2026-01-01T00:00:00Z", "podIPs": [{"ip": "10.0.0.1"}],
            "containerStatuses": [theirs], "nominatedNodeName": "n", "observedGeneration": 3,
            "conditions": [condition("2026-01-01T00:00:00Z"), {"type": "mine", "status": "True"}],
        });
        let ours = json!({
            "phase": "Running", "startTime": "2026-01-01T00:00:01Z", "podIPs": [{"ip": "10.0.0.1"}],
            "containerStatuses": [ours], "initContainerStatuses": [], "observedGeneration": 2,
            "conditions": [condition("2026-01-01T00:00:05Z")],
        });
        assert_eq!(patch(server, ours, false), Value::Null);
    }

    #[test]
    fn conditions_of_others_stay_where_they_are() {
        let server = json!({"conditions": [
            {"type": "mine", "status": "False"},
            {"type": "Ready", "status": "False", "reason": "r", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "PodResizePending", "status": "True"},
        ]});
        let ours = json!({"conditions": [
            {"type": "mine", "status": "True"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:09Z"},
            {"type": "Initialized", "status": "True"},
        ]});
        assert_eq!(
            patch(server, ours, false),
            json!({
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": null,
                        "lastTransitionTime": "2026-01-01T00:00:09Z"},
                    {"type": "Initialized", "status": "True"},
                    {"$patch": "delete", "type": "PodResizePending"},
                ],
                "$setElementOrder/conditions":
                    [{"type": "mine"}, {"type": "Ready"}, {"type": "Initialized"}],
            })
        );
    }

    #[test]
    fn a_pod_is_done_once_nothing_of_it_runs_and_for_good() {
        let running = json!({"phase": "Running"});
        let failed = json!({"phase": "Failed", "reason": "Evicted"});
        assert_eq!(patch(running.clone(), failed.clone(), false), Value::Null);
        assert_eq!(patch(running.clone(), failed.clone(), true), failed);
        assert_eq!(patch(failed, running, true), Value::Null);
    }

    #[test]
    fn what_is_gone_is_taken_away() {
        let server = json!({
            "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1"}},
        });
        let ours = json!({
            "podIPs": [{"ip": "fd00::1"}], "resources": {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}},
        });
        assert_eq!(
            patch(server, ours, false),
            json!({
                "podIP": null,
                "podIPs": [{"$patch": "delete", "ip": "10.0.0.1"}],
                "$setElementOrder/podIPs": [{"ip": "fd00::1"}],
                "resources": {"limits": {"cpu": "2", "memory": null}},
            })
        );
    }
}
