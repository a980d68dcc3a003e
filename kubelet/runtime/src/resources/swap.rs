//! Swap limits of containers.

use cri_proto::runtime::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use kubelet_pod_spec::{
    priority,
    qos::QosClass,
    resources::{amount, units},
};

use super::{Rules, SwapBehavior};

/// Limits swap if the kernel supports it: to zero, or with `LimitedSwap` to the share of the
/// machine's swap that the container's request has of the machine's memory.
pub(super) fn configure(
    linux: &mut LinuxContainerResources,
    pod: &Pod,
    own: &ResourceRequirements,
    rules: Rules<'_>,
) {
    let machine = rules.machine;
    if !machine.swap_controller {
        return;
    }
    if !machine.cgroup_v2 {
        // The limit is for the sum of memory and swap, so this leaves no swap.
        linux.memory_swap_limit_in_bytes = linux.memory_limit_in_bytes;
        return;
    }
    let swap = if may_swap(pod, Some(own), rules) {
        let request = units(amount(own.requests.as_ref(), "memory"));
        share(request, machine.memory, machine.swap)
    } else {
        0
    };
    let file = ("memory.swap.max".to_owned(), swap.to_string());
    linux.unified.extend([file]);
}

/// Whether a container with the resources `own` may use swap.
pub(crate) fn may_swap(pod: &Pod, own: Option<&ResourceRequirements>, rules: Rules<'_>) -> bool {
    let request = amount(own.and_then(|own| own.requests.as_ref()), "memory");
    let limit = amount(own.and_then(|own| own.limits.as_ref()), "memory");
    let class = pod.spec.as_ref().map(QosClass::of);
    rules.machine.swap_controller
        && rules.machine.cgroup_v2
        && rules.options.swap_behavior == SwapBehavior::LimitedSwap
        && !priority::is_critical(pod)
        && class == Some(QosClass::Burstable)
        && request != limit
}

/// Bytes of swap for a container that requests `request` of `memory` bytes; zero if the request
/// exceeds the memory.
fn share(request: i64, memory: i64, swap: i64) -> i64 {
    if memory <= 0 || request > memory {
        return 0;
    }
    let share = i128::from(request) * i128::from(swap) / i128::from(memory);
    i64::try_from(share).unwrap_or_default()
}
