//! The server's handling of pods: defaults, validation, graceful deletion.

pub(super) mod defaults;
pub(super) mod status_validation;
pub(super) mod validation;

use serde_json::{Value, json};

/// The QoS class of a pod's spec.
pub(super) fn qos_class(spec: &Value) -> &'static str {
    let containers = ["initContainers", "containers"]
        .into_iter()
        .flat_map(|field| spec[field].as_array().into_iter().flatten());
    // Resources of the whole pod take precedence.
    let is_set = |list: &Value| ["cpu", "memory"].iter().any(|name| list[name].is_string());
    let own = &spec["resources"];
    let sized: Vec<&Value> = if is_set(&own["requests"]) || is_set(&own["limits"]) {
        vec![spec]
    } else {
        containers.collect()
    };
    let amount = |container: &Value, list: &str, name: &str| {
        let quantity = container["resources"][list][name]
            .as_str()
            .map(str::to_owned);
        quantity.filter(|text| !text.trim_start_matches('0').is_empty())
    };
    let mut any = false;
    let mut all = true;
    for container in sized {
        for name in ["cpu", "memory"] {
            let request = amount(container, "requests", name);
            let limit = amount(container, "limits", name);
            any |= request.is_some() || limit.is_some();
            all &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (any, all) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

/// The grace period of a deletion in seconds: the requested one, or the spec's by default. It is 0
/// for a pod without a node or in a terminal phase.
pub(super) fn grace(pod: &Value, asked: Option<i64>) -> i64 {
    let unscheduled = pod["spec"]["nodeName"].as_str().unwrap_or_default() == "";
    let over = matches!(
        pod["status"]["phase"].as_str(),
        Some("Failed" | "Succeeded")
    );
    if unscheduled || over {
        return 0;
    }
    let seconds = asked
        .or_else(|| pod["spec"]["terminationGracePeriodSeconds"].as_i64())
        .unwrap_or(0);
    if seconds < 0 { 1 } else { seconds }
}

/// Binds a pod to a node, like the scheduler's binding.
pub(super) fn bind(pod: &mut Value, node: &str, now: &str) {
    pod["spec"]["nodeName"] = json!(node);
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": now, "observedGeneration": pod["metadata"]["generation"],
    });
    set_condition(pod, condition);
}

/// Sets the condition that no node fits the pod, and why.
pub(super) fn set_unschedulable(pod: &mut Value, why: &str, now: &str) {
    let conditions = pod["status"]["conditions"].as_array();
    let told = conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "PodScheduled" && one["message"] == why);
    if !told {
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why,
            "lastProbeTime": null, "lastTransitionTime": now,
            "observedGeneration": pod["metadata"]["generation"],
        });
        set_condition(pod, condition);
    }
}

fn set_condition(pod: &mut Value, condition: Value) {
    match pod["status"]["conditions"].as_array_mut() {
        Some(conditions) => {
            conditions.retain(|one| one["type"] != condition["type"]);
            conditions.push(condition);
        }
        None => pod["status"]["conditions"] = json!([condition]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_the_requests_and_limits() {
        let with = |resources: Value| json!({"containers": [{"resources": resources}]});
        let cases = [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"limits": {"cpu": "1"}}), "Burstable"),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
                "Guaranteed",
            ),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "1Gi"}}),
                "Burstable",
            ),
        ];
        for (resources, class) in cases {
            assert_eq!(qos_class(&with(resources.clone())), class, "{resources}");
            let mut whole = with(json!({}));
            whole["resources"] = resources;
            assert_eq!(qos_class(&whole), class, "{whole}");
        }
    }
}
