//! OOM score adjustment: which containers the kernel kills first when memory runs out.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_pod_spec::{
    priority,
    qos::QosClass,
    resources::{self, Side, amount, units},
    restart_rules,
};

const GUARANTEED: i64 = -997;
const BEST_EFFORT: i64 = 1000;

/// The adjustment of a container on a machine with `memory` bytes. A burstable container that uses
/// more than its request is killed before one that does not. The part of the pod's request that
/// exceeds its containers' requests is divided equally among them.
pub(super) fn adjustment(pod: &Pod, container: &Container, memory: i64) -> i64 {
    let Some(spec) = &pod.spec else {
        return BEST_EFFORT;
    };
    if priority::is_node_critical(pod) {
        return GUARANTEED;
    }
    match QosClass::of(spec) {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable(spec, container, memory.max(1)),
    }
}

fn burstable(spec: &PodSpec, container: &Container, memory: i64) -> i64 {
    let share = share_of_the_rest(spec);
    let score = |request: i64| {
        let request = request.saturating_add(share);
        1000 - request.saturating_mul(1000) / memory
    };
    let mut adjustment = score(memory_request(container));
    let is_init = spec
        .init_containers
        .iter()
        .flatten()
        .any(|init| init.name == container.name);
    if is_init && restart_rules::is_sidecar(container) {
        // A sidecar must not be killed before the containers that it serves.
        let least = spec.containers.iter().map(memory_request).min();
        adjustment = adjustment.min(score(least.unwrap_or_default()));
    }
    adjustment.clamp(1000 + GUARANTEED, BEST_EFFORT - 1)
}

fn share_of_the_rest(spec: &PodSpec) -> i64 {
    let own = resources::pod_level(spec, Side::Requests);
    let Some(own) = own.get("memory").filter(|amount| **amount != 0) else {
        return 0;
    };
    let containers = resources::of_containers(spec, Side::Requests);
    let taken = containers.get("memory").copied().unwrap_or_default();
    let count = spec.containers.len() + spec.init_containers.iter().flatten().count();
    let rest = units(*own).saturating_sub(units(taken));
    rest / i64::try_from(count.max(1)).unwrap_or(i64::MAX)
}

/// In bytes.
fn memory_request(container: &Container) -> i64 {
    let own = container.resources.as_ref();
    units(amount(own.and_then(|own| own.requests.as_ref()), "memory"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MEMORY: i64 = 10 << 30;

    fn score(spec: Value, name: &str) -> i64 {
        let mut pod = Pod {
            spec: Some(serde_json::from_value(spec).unwrap()),
            ..Pod::default()
        };
        kubelet_pod_spec::defaults::set_defaults(&mut pod);
        let spec = pod.spec.clone().unwrap();
        let all = spec.containers.iter();
        let mut all = all.chain(spec.init_containers.iter().flatten());
        adjustment(&pod, all.find(|c| c.name == name).unwrap(), MEMORY)
    }

    fn requests(name: &str, memory: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"memory": memory}}})
    }

    #[test]
    fn burstable_pods_stay_between_the_others() {
        let one = |container: Value| score(json!({"containers": [container]}), "c");
        assert_eq!(one(json!({"name": "c"})), 1000);
        assert_eq!(one(requests("c", "1Gi")), 900);
        assert_eq!(one(requests("c", "1")), 999);
        assert_eq!(one(requests("c", "20Gi")), 3);
        let limits = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(one(json!({"name": "c", "resources": limits})), -997);
    }

    #[test]
    fn a_pod_that_the_node_needs_is_killed_last() {
        let mut spec = json!({
            "priority": 2_000_001_000, "priorityClassName": "system-node-critical",
            "containers": [{"name": "c"}]
        });
        assert_eq!(score(spec.clone(), "c"), -997);
        spec["priorityClassName"] = "system-cluster-critical".into();
        assert_eq!(score(spec, "c"), 1000);
    }

    #[test]
    fn a_sidecar_does_not_die_before_those_it_serves() {
        let mut sidecar = requests("s", "1Gi");
        sidecar["restartPolicy"] = "Always".into();
        let spec = json!({
            "initContainers": [sidecar],
            "containers": [requests("a", "5Gi"), requests("b", "2Gi")]
        });
        assert_eq!(score(spec.clone(), "s"), 800);
        assert_eq!(score(spec, "a"), 500);
    }

    #[test]
    fn the_rest_of_a_pods_request_is_shared() {
        let spec = json!({
            "resources": {"requests": {"memory": "4Gi"}},
            "containers": [requests("a", "2Gi"), {"name": "b"}]
        });
        assert_eq!(score(spec.clone(), "a"), 700);
        assert_eq!(score(spec, "b"), 900);
    }
}
