//! Resource limits in the engine's terms.

use bollard::models::HostConfig;
use cri_proto::runtime::v1::LinuxContainerResources;

use crate::labels::Unified;

/// Sets the limits in the engine's create request; 0 means no limit. The caller handles
/// `oom_score_adj` and `unified`, which is returned. The engine has no hugepage limits: the kubelet
/// sets them on the pod's own cgroup.
pub(super) fn apply(resources: LinuxContainerResources, host: &mut HostConfig) -> Unified {
    let limit = |value: i64| (value != 0).then_some(value);
    let set = |value: String| (!value.is_empty()).then_some(value);
    host.cpu_period = limit(resources.cpu_period);
    host.cpu_quota = limit(resources.cpu_quota);
    host.cpu_shares = limit(resources.cpu_shares);
    host.cpuset_cpus = set(resources.cpuset_cpus);
    host.cpuset_mems = set(resources.cpuset_mems);
    host.memory = limit(resources.memory_limit_in_bytes);
    // The engine's value is the sum of memory and swap. Without a swap limit, there is no swap.
    host.memory_swap = host
        .memory
        .map(|memory| limit(resources.memory_swap_limit_in_bytes).unwrap_or(memory));
    resources.unified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_word_on_swap_has_none() {
        let resources = |memory, swap| LinuxContainerResources {
            memory_limit_in_bytes: memory,
            memory_swap_limit_in_bytes: swap,
            ..Default::default()
        };
        for (memory, swap, expected) in [
            (100, 0, (Some(100), Some(100))),
            (100, 150, (Some(100), Some(150))),
            (100, -1, (Some(100), Some(-1))),
            (0, 0, (None, None)),
        ] {
            let mut host = HostConfig::default();
            apply(resources(memory, swap), &mut host);
            assert_eq!((host.memory, host.memory_swap), expected);
        }
    }
}
