//! Refusal of in-place memory resizes of containers with swap: the swap limit of a container
//! depends on its memory request.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::{ResizeRefusal, all_containers, cpu_memory::CpuMemory};
use crate::{RuntimeManager, resources};

impl RuntimeManager {
    /// Checks whether a resize changes the memory request of a container with swap in place.
    /// `placed` is the pod with its present resources.
    ///
    /// # Errors
    /// Such a container exists; the resize is infeasible.
    pub fn check_swap(&self, pod: &Pod, placed: &Pod) -> Result<(), ResizeRefusal> {
        let rules = self.rules();
        check(pod, placed, |pod, container| {
            resources::may_swap(pod, container.resources.as_ref(), rules)
        })
    }
}

fn check(
    pod: &Pod,
    placed: &Pod,
    may_swap: impl Fn(&Pod, &Container) -> bool,
) -> Result<(), ResizeRefusal> {
    let request =
        |container: &Container| CpuMemory::of(container.resources.as_ref()).memory_request;
    let had: Vec<&Container> = placed.spec.iter().flat_map(all_containers).collect();
    for container in pod.spec.iter().flat_map(all_containers) {
        let Some(had) = had.iter().find(|had| had.name == container.name) else {
            continue;
        };
        if request(had) != request(container)
            && !restarts_for_memory(container)
            && (may_swap(pod, container) || may_swap(placed, had))
        {
            let why = "In-place resize of containers with swap is not supported.";
            return Err(ResizeRefusal::Infeasible {
                message: why.to_owned(),
                detail: "swap_limitation",
            });
        }
    }
    Ok(())
}

fn restarts_for_memory(container: &Container) -> bool {
    let policies = container.resize_policy.iter().flatten();
    let mut of_memory = policies.filter(|policy| policy.resource_name == "memory");
    of_memory
        .next()
        .is_some_and(|policy| policy.restart_policy == "RestartContainer")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(cpu: &str, memory: &str, policy: &str) -> Pod {
        let pod = json!({"spec": {"containers": [{
            "name": "c",
            "resources": {"requests": {"cpu": cpu, "memory": memory}},
            "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}]
        }]}});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn what_may_swap_gets_other_memory_by_a_restart_alone() {
        let before = pod("1", "100", "NotRequired");
        let swaps = |pod: &Pod, swaps: bool| check(pod, &before, |_, _| swaps);
        let more = pod("1", "101", "NotRequired");
        assert_eq!(swaps(&more, false), Ok(()));
        let why = "In-place resize of containers with swap is not supported.".to_owned();
        let infeasible = ResizeRefusal::Infeasible {
            message: why,
            detail: "swap_limitation",
        };
        assert_eq!(swaps(&more, true), Err(infeasible));
        assert_eq!(swaps(&pod("2", "100", "NotRequired"), true), Ok(()));
        assert_eq!(swaps(&pod("1", "101", "RestartContainer"), true), Ok(()));
    }
}
