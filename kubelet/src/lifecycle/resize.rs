//! Admission of in-place resizes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{
    qos::QosClass,
    resources::{self, Amounts, amount},
};
use kubelet_runtime::resize::ResizeRefusal;

use super::{Admission, AdmissionOutcome, NodeFacts, fit};

impl Admission {
    /// Checks whether the pod, which runs with the resources of `granted`, can have those of `pod`
    /// on `node` beside `others`. The rules are those of new pods, but only resources that grow can
    /// be short.
    ///
    /// # Errors
    /// The resize is deferred or infeasible.
    pub fn admit_resize(
        &self,
        pod: &Pod,
        granted: &Pod,
        node: &NodeFacts,
        others: &[Arc<Pod>],
    ) -> Result<AdmissionOutcome, ResizeRefusal> {
        let (wanted, had) = (requests(pod), requests(granted));
        let grows = |name: &str| wanted.get(name) > had.get(name);
        self.check_gate(pod, granted)?;
        self.check_managers(pod, granted)?;
        check_capacity(&wanted, node, grows)?;
        let mut shortages = fit::shortages(pod, others, node);
        shortages.retain(|shortage| grows(&shortage.resource));
        let admitted = self.decide(pod, node, others, &shortages);
        let admitted = admitted.map_err(|rejection| ResizeRefusal::Deferred(rejection.message))?;
        self.count_preempted(&admitted, &shortages);
        Ok(admitted)
    }
}

impl Admission {
    /// Checks that the resources of the pod as a whole do not change if their resize is off.
    fn check_gate(&self, pod: &Pod, granted: &Pod) -> Result<(), ResizeRefusal> {
        let whole = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.resources.clone());
        if self.features.pod_resize || whole(pod) == whole(granted) {
            return Ok(());
        }
        Err(ResizeRefusal::Infeasible {
            message: "InPlacePodLevelResourcesVerticalScaling is disabled".to_owned(),
            detail: "plr_feature_gate_off",
        })
    }

    /// Checks that what containers have for themselves does not change, as upstream without
    /// `InPlacePodVerticalScalingExclusiveCPUs` and `InPlacePodVerticalScalingExclusiveMemory`.
    fn check_managers(&self, pod: &Pod, granted: &Pod) -> Result<(), ResizeRefusal> {
        let class = pod.spec.as_ref().map(QosClass::of);
        if class != Some(QosClass::Guaranteed) {
            return Ok(());
        }
        for (is_managed, resource, policy, detail) in [
            (
                self.managers.manages_cpus(),
                "cpu",
                "CPU Manager policy \"static\"",
                "guaranteed_pod_cpu_manager_static_policy",
            ),
            (
                self.managers.manages_memory(),
                "memory",
                "Memory Manager policy \"Static\"",
                "guaranteed_pod_memory_manager_static_policy",
            ),
        ] {
            if is_managed && of_containers(pod, resource) != of_containers(granted, resource) {
                return Err(ResizeRefusal::Infeasible {
                    message: format!("Resize is infeasible for Guaranteed Pods alongside {policy}"),
                    detail,
                });
            }
        }
        Ok(())
    }
}

/// What each container requests of a resource.
fn of_containers(pod: &Pod, resource: &str) -> Vec<i128> {
    let spec = pod.spec.iter();
    let containers = spec.flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        init.chain(&spec.containers)
    });
    let resources = containers.map(|container| container.resources.as_ref());
    resources
        .map(|it| amount(it.and_then(|it| it.requests.as_ref()), resource))
        .collect()
}

fn requests(pod: &Pod) -> Amounts {
    pod.spec
        .as_ref()
        .map(resources::requests)
        .unwrap_or_default()
}

/// Checks that the request would fit if the pod were alone on the node. Upstream's kubelet 1.36
/// leaves this to the API server; the message is that of earlier kubelets.
fn check_capacity(
    wanted: &Amounts,
    node: &NodeFacts,
    grows: impl Fn(&str) -> bool,
) -> Result<(), ResizeRefusal> {
    for name in ["memory", "cpu"] {
        let amount = |amounts: &Amounts| {
            let amount = amounts.get(name).copied().unwrap_or_default();
            resources::counted(name, amount)
        };
        let (requested, capacity) = (amount(wanted), amount(&node.allocatable));
        if requested > capacity && grows(name) {
            return Err(ResizeRefusal::Infeasible {
                message: format!(
                    "Node didn't have enough capacity: {name}, requested: {requested}, \
                     capacity: {capacity}"
                ),
                detail: "insufficient_node_allocatable",
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::lifecycle::tests::admission;

    fn pod(requests: &Value) -> Arc<Pod> {
        let pod = json!({"spec": {"containers": [
            {"name": "c", "resources": {"requests": requests}}
        ]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn admit(
        had: &Value,
        wanted: &Value,
        others: &[Arc<Pod>],
    ) -> Result<AdmissionOutcome, ResizeRefusal> {
        let node = json!({"status": {
            "allocatable": {"cpu": "2", "memory": "1000", "pods": "1"}
        }});
        let node = NodeFacts::of(&serde_json::from_value(node).unwrap());
        admission().admit_resize(&pod(wanted), &pod(had), &node, others)
    }

    #[test]
    fn a_pod_may_grow_as_long_as_there_is_room_and_always_shrink() {
        // More than allocatable, such as after reservations grew.
        let others = [pod(&json!({"cpu": "1500m", "memory": "1001"}))];
        let had = json!({"cpu": "300m", "memory": "100"});
        let admit = |wanted| admit(&had, &wanted, &others);
        let now = Ok(AdmissionOutcome::Now);
        assert_eq!(admit(json!({"cpu": "500m", "memory": "100"})), now);
        assert_eq!(admit(json!({"cpu": "300m", "memory": "99"})), now);
        assert_eq!(admit(json!({})), now);
        for (wanted, lacking) in [
            (
                json!({"cpu": "501m"}),
                "cpu, requested: 501, used: 1500, capacity: 2000",
            ),
            (
                json!({"memory": "101"}),
                "memory, requested: 101, used: 1001, capacity: 1000",
            ),
        ] {
            let why = format!("Node didn't have enough resource: {lacking}");
            assert_eq!(admit(wanted), Err(ResizeRefusal::Deferred(why)));
        }
    }

    #[test]
    fn what_the_node_does_not_have_is_never_granted() {
        for (wanted, lacking) in [
            (
                json!({"cpu": "2001m"}),
                "cpu, requested: 2001, capacity: 2000",
            ),
            (
                json!({"cpu": "2001m", "memory": "1001"}),
                "memory, requested: 1001, capacity: 1000",
            ),
        ] {
            let why = format!("Node didn't have enough capacity: {lacking}");
            let refused = admit(&json!({"cpu": "1"}), &wanted, &[]);
            let refusal = refused.unwrap_err();
            assert_eq!((refusal.reason(), refusal.message()), ("Infeasible", &*why));
        }
        // Shrinking is allowed even above the capacity.
        let less = admit(&json!({"cpu": "4"}), &json!({"cpu": "3"}), &[]);
        assert_eq!(less, Ok(AdmissionOutcome::Now));
    }
}
