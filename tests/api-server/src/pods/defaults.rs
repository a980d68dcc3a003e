//! Defaults of pods, and the values that upstream's default admission plugins set.

use serde_json::{Map, Value, json};

/// Sets the defaults of a pod's spec.
pub(crate) fn apply(spec: &mut Value) {
    let Some(fields) = spec.as_object_mut() else {
        return;
    };
    let host_network = fields.get("hostNetwork") == Some(&json!(true));
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("securityContext", json!({})),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
    ] {
        absent(fields, field, value);
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in elements(fields, list) {
            default_container(container, host_network);
        }
    }
    for volume in elements(fields, "volumes") {
        default_volume(volume);
    }
}

/// Sets the required fields of container statuses, whichever client wrote them.
pub(crate) fn complete_status(status: &mut Value) {
    let Some(fields) = status.as_object_mut() else {
        return;
    };
    for list in [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ] {
        for container in elements(fields, list) {
            for field in ["state", "lastState"] {
                absent(container, field, json!({}));
            }
        }
    }
}

/// Applies admission: sets the priority of the priority class, and adds the default tolerations for
/// not-ready and unreachable nodes (300 seconds).
pub(crate) fn admit(spec: &mut Value, static_pod: bool) -> Result<(), String> {
    let Some(fields) = spec.as_object_mut() else {
        return Ok(());
    };
    let priority = match fields.get("priorityClassName").and_then(Value::as_str) {
        None | Some("") => 0,
        Some("system-cluster-critical") => 2_000_000_000,
        Some("system-node-critical") => 2_000_001_000,
        Some(other) => return Err(format!("no PriorityClass with name {other} was found")),
    };
    if !static_pod {
        fields.insert("priority".to_owned(), json!(priority));
    }
    absent(fields, "priority", json!(priority));
    absent(fields, "preemptionPolicy", json!("PreemptLowerPriority"));
    let tolerations = fields
        .entry("tolerations")
        .or_insert_with(|| Value::Array(Vec::new()));
    let Value::Array(tolerations) = tolerations else {
        return Ok(());
    };
    for key in [
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    ] {
        let tolerated = tolerations.iter().any(|one| {
            let any_key = one["key"].as_str().unwrap_or_default() == "";
            let any_effect = one["effect"].as_str().unwrap_or_default() == "";
            (any_key || one["key"] == key) && (any_effect || one["effect"] == "NoExecute")
        });
        if !tolerated {
            tolerations.push(json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300,
            }));
        }
    }
    Ok(())
}

fn absent(fields: &mut Map<String, Value>, field: &str, value: Value) {
    let slot = fields.entry(field).or_insert(Value::Null);
    if slot.is_null() || slot == "" {
        *slot = value;
    }
}

fn elements<'a>(
    fields: &'a mut Map<String, Value>,
    list: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    fields
        .get_mut(list)
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
}

fn inner<'a>(
    fields: &'a mut Map<String, Value>,
    field: &str,
) -> Option<&'a mut Map<String, Value>> {
    fields.get_mut(field).and_then(Value::as_object_mut)
}

fn default_container(container: &mut Map<String, Value>, host_network: bool) {
    let image = container
        .get("image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let policy = if is_latest(image) {
        "Always"
    } else {
        "IfNotPresent"
    };
    for (field, value) in [
        ("imagePullPolicy", json!(policy)),
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
    ] {
        absent(container, field, value);
    }
    absent(container, "resources", json!({}));
    if let Some(resources) = inner(container, "resources")
        && let Some(limits) = resources.get("limits").and_then(Value::as_object).cloned()
    {
        absent(resources, "requests", json!({}));
        if let Some(requests) = inner(resources, "requests") {
            for (name, limit) in limits {
                absent(requests, &name, limit);
            }
        }
    }
    for port in elements(container, "ports") {
        absent(port, "protocol", json!("TCP"));
        if host_network && let Some(number) = port.get("containerPort").cloned() {
            absent(port, "hostPort", number);
        }
    }
    for variable in elements(container, "env") {
        if let Some(reference) =
            inner(variable, "valueFrom").and_then(|source| inner(source, "fieldRef"))
        {
            absent(reference, "apiVersion", json!("v1"));
        }
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = inner(container, probe) {
            for (field, value) in [
                ("timeoutSeconds", 1),
                ("periodSeconds", 10),
                ("successThreshold", 1),
                ("failureThreshold", 3),
            ] {
                absent(probe, field, json!(value));
            }
            default_handler(probe);
            if let Some(grpc) = inner(probe, "grpc") {
                grpc.entry("service").or_insert_with(|| json!(""));
            }
        }
    }
    if let Some(lifecycle) = inner(container, "lifecycle") {
        for hook in ["postStart", "preStop"] {
            if let Some(handler) = inner(lifecycle, hook) {
                default_handler(handler);
            }
        }
    }
}

fn default_handler(handler: &mut Map<String, Value>) {
    if let Some(http) = inner(handler, "httpGet") {
        absent(http, "path", json!("/"));
        absent(http, "scheme", json!("HTTP"));
    }
}

fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    name.split_once(':').is_none_or(|(_, tag)| tag == "latest")
}

fn default_volume(volume: &mut Map<String, Value>) {
    if volume.keys().all(|field| field == "name") {
        volume.insert("emptyDir".to_owned(), json!({}));
    }
    for source in ["configMap", "secret", "downwardAPI", "projected"] {
        if let Some(source) = inner(volume, source) {
            absent(source, "defaultMode", json!(0o644));
            for item in elements(source, "items") {
                default_item(item);
            }
            for projection in elements(source, "sources") {
                if let Some(token) = inner(projection, "serviceAccountToken") {
                    absent(token, "expirationSeconds", json!(3600));
                }
                if let Some(downward) = inner(projection, "downwardAPI") {
                    for item in elements(downward, "items") {
                        default_item(item);
                    }
                }
            }
        }
    }
    if let Some(host_path) = inner(volume, "hostPath") {
        host_path.entry("type").or_insert_with(|| json!(""));
    }
    if let Some(claim) = inner(volume, "ephemeral")
        .and_then(|ephemeral| inner(ephemeral, "volumeClaimTemplate"))
        .and_then(|template| inner(template, "spec"))
    {
        absent(claim, "volumeMode", json!("Filesystem"));
    }
}

fn default_item(item: &mut Map<String, Value>) {
    if let Some(reference) = inner(item, "fieldRef") {
        absent(reference, "apiVersion", json!("v1"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_pod_becomes_a_whole_one() {
        let mut spec = json!({
            "containers": [{
                "name": "a", "image": "busybox", "ports": [{"containerPort": 80}],
                "livenessProbe": {"httpGet": {"port": 80}},
                "resources": {"limits": {"cpu": "1"}},
            }],
            "volumes": [{"name": "e"}, {"name": "c", "configMap": {"name": "c"}}],
        });
        apply(&mut spec);
        admit(&mut spec, false).unwrap();
        assert_eq!(spec["restartPolicy"], "Always");
        assert_eq!(spec["terminationGracePeriodSeconds"], 30);
        let container = &spec["containers"][0];
        assert_eq!(container["imagePullPolicy"], "Always");
        assert_eq!(container["ports"][0]["protocol"], "TCP");
        assert_eq!(container["livenessProbe"]["periodSeconds"], 10);
        assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/");
        assert_eq!(container["resources"]["requests"], json!({"cpu": "1"}));
        assert_eq!(spec["volumes"][0]["emptyDir"], json!({}));
        assert_eq!(spec["volumes"][1]["configMap"]["defaultMode"], 420);
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
        let once = spec.clone();
        apply(&mut spec);
        admit(&mut spec, false).unwrap();
        assert_eq!(spec, once, "defaulting twice changes nothing");
    }

    #[test]
    fn only_what_may_move_is_pulled_always() {
        for (image, latest) in [
            ("busybox", true),
            ("busybox:latest", true),
            ("localhost:5000/busybox", true),
            ("busybox:1.36", false),
            ("busybox@sha256:0", false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }
}
