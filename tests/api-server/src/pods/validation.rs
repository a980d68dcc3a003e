//! Validation of new pods and of pod updates.

use serde_json::{Value, json};

use crate::errors::Cause;

const CONTAINERS: [&str; 2] = ["containers", "initContainers"];

/// The errors in a new pod.
pub(crate) fn create(pod: &Value) -> Vec<Cause> {
    let spec = &pod["spec"];
    let mut causes = Vec::new();
    if spec["containers"].as_array().is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.containers", ""));
    }
    let mut names: Vec<&str> = Vec::new();
    for list in CONTAINERS {
        for (index, container) in spec[list].as_array().into_iter().flatten().enumerate() {
            let field = |name: &str| format!("spec.{list}[{index}].{name}");
            let name = container["name"].as_str().unwrap_or_default();
            if name.is_empty() {
                causes.push(Cause::required(field("name"), ""));
            } else if !is_label(name) {
                causes.push(Cause::invalid(
                    field("name"),
                    &json!(name),
                    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                ));
            }
            if names.contains(&name) {
                causes.push(duplicate(field("name"), name));
            }
            names.push(name);
            if container["image"].as_str().unwrap_or_default().trim() == "" {
                causes.push(Cause::required(field("image"), ""));
            }
            let policy = &container["imagePullPolicy"];
            let allowed = ["Always", "IfNotPresent", "Never"];
            if policy.as_str().is_some_and(|one| !allowed.contains(&one)) {
                causes.push(Cause::unsupported(
                    field("imagePullPolicy"),
                    policy,
                    &allowed,
                ));
            }
            let volumes = spec["volumes"].as_array();
            for (mount_index, mount) in container["volumeMounts"]
                .as_array()
                .into_iter()
                .flatten()
                .enumerate()
            {
                let known = volumes
                    .into_iter()
                    .flatten()
                    .any(|volume| volume["name"] == mount["name"]);
                if !known {
                    causes.push(Cause {
                        field: field(&format!("volumeMounts[{mount_index}].name")),
                        reason: "FieldValueNotFound",
                        message: format!("Not found: {}", mount["name"]),
                    });
                }
            }
        }
    }
    let policy = &spec["restartPolicy"];
    let allowed = ["Always", "OnFailure", "Never"];
    if policy.as_str().is_some_and(|one| !allowed.contains(&one)) {
        causes.push(Cause::unsupported("spec.restartPolicy", policy, &allowed));
    }
    let mirror = pod["metadata"]["annotations"]["kubernetes.io/config.mirror"].is_string();
    if mirror && spec["nodeName"].as_str().unwrap_or_default() == "" {
        causes.push(Cause::invalid(
            "metadata.annotations[kubernetes.io/config.mirror]",
            &json!(""),
            "must set spec.nodeName if mirror pod annotation is set",
        ));
    }
    causes
}

fn duplicate(field: String, name: &str) -> Cause {
    Cause {
        field,
        reason: "FieldValueDuplicate",
        message: format!("Duplicate value: {name:?}"),
    }
}

fn is_label(name: &str) -> bool {
    name.len() <= 63
        && !name.starts_with('-')
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The errors in an update of a pod. Only images, the active deadline, additional tolerations and a
/// negative grace period of the spec may change.
pub(crate) fn update(old: &Value, new: &Value) -> Vec<Cause> {
    let (old_spec, new_spec) = (&old["spec"], &new["spec"]);
    let mut causes = Vec::new();
    for list in CONTAINERS {
        let count = |spec: &Value| spec[list].as_array().map_or(0, Vec::len);
        if count(old_spec) != count(new_spec) {
            causes.push(Cause::forbidden(
                format!("spec.{list}"),
                "pod updates may not add or remove containers",
            ));
            return causes;
        }
        for (index, container) in new_spec[list].as_array().into_iter().flatten().enumerate() {
            if container["image"].as_str().unwrap_or_default() == "" {
                causes.push(Cause::required(format!("spec.{list}[{index}].image"), ""));
            }
        }
    }
    let deadline = (
        old_spec["activeDeadlineSeconds"].as_i64(),
        new_spec["activeDeadlineSeconds"].as_i64(),
    );
    match deadline {
        (Some(_), None) => causes.push(Cause::invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        )),
        (Some(old), Some(new)) if new > old => causes.push(Cause::invalid(
            "spec.activeDeadlineSeconds",
            &json!(new),
            "must be less than or equal to previous value",
        )),
        _ => {}
    }
    let tolerations = |spec: &Value| spec["tolerations"].as_array().cloned().unwrap_or_default();
    let kept = tolerations(new_spec);
    if !tolerations(old_spec).iter().all(|one| kept.contains(one)) {
        causes.push(Cause::forbidden(
            "spec.tolerations",
            "existing toleration can not be modified except its tolerationSeconds",
        ));
    }
    let mut leveled = new_spec.clone();
    for list in CONTAINERS {
        let old_list = old_spec[list].as_array();
        for (container, old) in elements(&mut leveled, list).zip(old_list.into_iter().flatten()) {
            container["image"] = old["image"].clone();
        }
    }
    for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
        level(&mut leveled, old_spec, field);
    }
    if old_spec["terminationGracePeriodSeconds"].as_i64() < Some(0)
        && new_spec["terminationGracePeriodSeconds"] == 1
    {
        level(&mut leveled, old_spec, "terminationGracePeriodSeconds");
    }
    if leveled != *old_spec {
        causes.push(Cause::forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        ));
    }
    causes
}

/// The errors in a resize. Only resources and resize policies may change.
pub(crate) fn resize(old: &Value, new: &Value) -> Vec<Cause> {
    let mut leveled = new["spec"].clone();
    for list in CONTAINERS {
        let old_list = old["spec"][list].as_array();
        for (container, old) in elements(&mut leveled, list).zip(old_list.into_iter().flatten()) {
            for field in ["resources", "resizePolicy"] {
                level(container, old, field);
            }
        }
    }
    level(&mut leveled, &old["spec"], "resources");
    let mut causes = Vec::new();
    if leveled != old["spec"] {
        causes.push(Cause::forbidden(
            "spec",
            "only cpu and memory resources are mutable",
        ));
    }
    if super::qos_class(&old["spec"]) != super::qos_class(&new["spec"]) {
        causes.push(Cause::invalid(
            "spec",
            &json!(super::qos_class(&new["spec"])),
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    if !can_be_resized(&old["status"]) {
        causes.push(Cause::forbidden(
            "spec",
            "Pod running on node without support for resize",
        ));
    }
    causes
}

/// Whether the node reports the resources of running containers, which means that it supports
/// resizing.
fn can_be_resized(status: &Value) -> bool {
    let statuses = status["containerStatuses"].as_array();
    let runs = |container: &&Value| container["state"]["running"].is_object();
    let running = statuses.into_iter().flatten().find(runs);
    running.is_none_or(|container| container["resources"].is_object())
}

/// The errors in an update of ephemeral containers. Containers may only be added.
pub(crate) fn ephemeral(old: &Value, new: &Value) -> Vec<Cause> {
    let list = |pod: &Value| {
        pod["spec"]["ephemeralContainers"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    };
    let new_list = list(new);
    let mut causes = Vec::new();
    for old in list(old) {
        let name = old["name"].as_str().unwrap_or_default();
        match new_list.iter().find(|one| one["name"] == old["name"]) {
            Some(same) if *same == old => {}
            Some(_) => causes.push(Cause::forbidden(
                "spec.ephemeralContainers",
                &format!("existing ephemeral containers {name:?} may not be changed"),
            )),
            None => causes.push(Cause::forbidden(
                "spec.ephemeralContainers",
                &format!("existing ephemeral containers {name:?} may not be removed"),
            )),
        }
    }
    causes
}

fn elements<'a>(spec: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = spec.get_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// Copies a field from `source` to `target`, or removes it if `source` does not have it.
fn level(target: &mut Value, source: &Value, field: &str) {
    if let Some(fields) = target.as_object_mut() {
        match source.get(field) {
            Some(value) => {
                fields.insert(field.to_owned(), value.clone());
            }
            None => {
                fields.remove(field);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> Value {
        json!({"metadata": {"name": "p"}, "spec": {
            "nodeName": "n", "containers": [{"name": "a", "image": "one"}], "tolerations": [],
        }})
    }

    #[test]
    fn images_may_change_and_commands_may_not() {
        let mut new = pod();
        new["spec"]["containers"][0]["image"] = json!("two");
        new["spec"]["activeDeadlineSeconds"] = json!(5);
        assert_eq!(update(&pod(), &new), []);
        new["spec"]["containers"][0]["command"] = json!(["x"]);
        assert_eq!(update(&pod(), &new)[0].field, "spec");
        let mut moved = pod();
        moved["spec"]["nodeName"] = json!("m");
        assert_eq!(update(&pod(), &moved).len(), 1);
    }

    #[test]
    fn a_resize_changes_resources_alone() {
        let mut old = pod();
        old["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1"}});
        let mut new = old.clone();
        new["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "2"}});
        assert_eq!(resize(&old, &new), []);
        assert_eq!(update(&old, &new).len(), 1);
        new["spec"]["containers"][0]["image"] = json!("two");
        assert_eq!(resize(&old, &new).len(), 1);
        assert_eq!(resize(&old, &pod()).len(), 1, "the class changes");
    }

    #[test]
    fn a_pod_needs_containers_with_names_and_images() {
        let bad = json!({"metadata": {}, "spec": {"containers": [{"name": "A_b"}, {"name": "A_b", "image": "x"}]}});
        let fields: Vec<_> = create(&bad).into_iter().map(|cause| cause.field).collect();
        assert_eq!(
            fields,
            [
                "spec.containers[0].name",
                "spec.containers[0].image",
                "spec.containers[1].name",
                "spec.containers[1].name",
            ]
        );
    }
}
