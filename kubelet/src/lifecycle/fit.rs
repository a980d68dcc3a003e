//! Checks that the node has the resources that a pod requests.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_pod_spec::{
    resources::{self, Amounts},
    shortage::Shortage,
};

use super::node_facts::NodeFacts;

/// The resources that the node lacks for `pod` beside `others`; `pods` comes first.
pub(super) fn shortages(pod: &Pod, others: &[Arc<Pod>], node: &NodeFacts) -> Vec<Shortage> {
    let Some(spec) = &pod.spec else {
        return Vec::new();
    };
    let places = resources::units(capacity(node, "pods"));
    let used = i64::try_from(others.len()).unwrap_or(i64::MAX);
    let mut shortages: Vec<Shortage> = Shortage::find("pods", 1, used, places)
        .into_iter()
        .collect();
    let requests = requests(pod, spec);
    let others: Vec<Amounts> = others
        .iter()
        .filter_map(|other| Some(self::requests(other, other.spec.as_ref()?)))
        .collect();
    let mut names: Vec<&String> = requests.keys().filter(|name| counts(name, node)).collect();
    names.sort_unstable_by_key(|name| (rank(name), *name));
    shortages.extend(names.into_iter().filter_map(|name| {
        let used = others.iter().filter_map(|other| other.get(name)).sum();
        let requested = requests.get(name).copied().unwrap_or_default();
        let [requested, used, capacity] = [requested, used, capacity(node, name)]
            .map(|billionths| resources::counted(name, billionths));
        // A resource that is not requested cannot be short, even when overcommitted.
        let asked = requested > 0;
        asked.then(|| Shortage::find(name, requested, used, capacity))?
    }));
    shortages
}

/// What the pod requests, without the extended resources that its claims give it.
fn requests(pod: &Pod, spec: &PodSpec) -> Amounts {
    let status = pod.status.as_ref();
    if status.is_none_or(|status| status.extended_resource_claim_status.is_none()) {
        return resources::requests(spec);
    }
    let mut spec = spec.clone();
    let init = spec.init_containers.iter_mut().flatten();
    for container in init.chain(&mut spec.containers) {
        let Some(requirements) = &mut container.resources else {
            continue;
        };
        let name = &container.name;
        for list in [&mut requirements.requests, &mut requirements.limits] {
            let list = list.iter_mut();
            list.for_each(|list| list.retain(|it, _| !resources::is_claimed(pod, name, it)));
        }
    }
    resources::requests(&spec)
}

fn capacity(node: &NodeFacts, name: &str) -> i128 {
    node.allocatable.get(name).copied().unwrap_or_default()
}

/// The order of upstream's checks.
fn rank(name: &str) -> u8 {
    match name {
        "cpu" => 0,
        "memory" => 1,
        "ephemeral-storage" => 2,
        _ => 3,
    }
}

/// Whether a resource is checked. Extended resources that the node does not list may be
/// cluster-level, and are not.
fn counts(name: &str, node: &NodeFacts) -> bool {
    let is_extended = name.contains('/') && !name.contains("kubernetes.io/");
    match name {
        "cpu" | "memory" | "ephemeral-storage" => true,
        _ if is_extended => node.allocatable.contains_key(name),
        _ => resources::is_huge_pages(name) || name.contains('/'),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(requests: Value) -> Arc<Pod> {
        let pod = json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": requests}}
        ]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn node(allocatable: Value) -> NodeFacts {
        let node = json!({"status": {"allocatable": allocatable}});
        NodeFacts::of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn what_a_node_lacks_is_told_in_upstreams_order_and_words() {
        let node = node(json!({
            "cpu": "2", "memory": "1Gi", "pods": "1", "ephemeral-storage": "10", "a.b/gpu": "1"
        }));
        let others = [pod(json!({"cpu": "1500m", "a.b/gpu": "1"}))];
        let told = |requests| -> Vec<String> {
            let found = shortages(&pod(requests), &others, &node);
            found.iter().map(ToString::to_string).collect()
        };
        let place = "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1";
        assert_eq!(told(json!({"cpu": "500m", "x.y/other": "3"})), [place]);
        assert_eq!(
            told(json!({
                "hugepages-2Mi": "2Mi", "ephemeral-storage": "11", "cpu": "501m",
                "memory": "2Gi", "a.b/gpu": "1"
            })),
            [
                place,
                "Node didn't have enough resource: cpu, requested: 501, used: 1500, capacity: 2000",
                "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
                "Node didn't have enough resource: ephemeral-storage, requested: 11, used: 0, capacity: 10",
                "Node didn't have enough resource: a.b/gpu, requested: 1, used: 1, capacity: 1",
                "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0",
            ]
        );
    }

    #[test]
    fn what_is_requested_of_nothing_always_fits() {
        let node = node(json!({"pods": "5", "cpu": "1"}));
        // Even when the resource is overcommitted.
        let others = [pod(json!({"cpu": "2"}))];
        assert_eq!(shortages(&pod(json!({"cpu": "0"})), &others, &node), []);
    }

    #[test]
    fn what_a_claim_gives_is_not_asked_of_the_node() {
        let node = node(json!({"cpu": "2", "pods": "9", "a.b/gpu": "0"}));
        let names = ["a.b/gpu", "deviceclass.resource.kubernetes.io/nic"];
        let mut pod = Pod::clone(&pod(json!({"cpu": "1", names[0]: "1", names[1]: "1"})));
        let lacks = |pod: &Pod| -> Vec<String> {
            let lacks = shortages(pod, &[], &node);
            lacks.iter().map(Shortage::reason).collect()
        };
        assert_eq!(lacks(&pod), names.map(|name| format!("OutOf{name}")));
        let mappings = names
            .map(|name| json!({"containerName": "c", "resourceName": name, "requestName": "r"}));
        let claim = json!({"resourceClaimName": "claim", "requestMappings": mappings});
        let status = json!({ "extendedResourceClaimStatus": claim });
        pod.status = serde_json::from_value(status).unwrap();
        assert_eq!(lacks(&pod), [""; 0]);
    }
}
