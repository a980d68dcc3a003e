//! Resource updates. A field that is 0 or empty keeps its current value.

use cri_proto::runtime::v1::LinuxContainerResources;

/// Applies `update` to `now`.
pub(super) fn update(now: &mut LinuxContainerResources, update: LinuxContainerResources) {
    let numbers = [
        (&mut now.cpu_period, update.cpu_period),
        (&mut now.cpu_quota, update.cpu_quota),
        (&mut now.cpu_shares, update.cpu_shares),
        (&mut now.memory_limit_in_bytes, update.memory_limit_in_bytes),
        (&mut now.oom_score_adj, update.oom_score_adj),
        (
            &mut now.memory_swap_limit_in_bytes,
            update.memory_swap_limit_in_bytes,
        ),
    ];
    for (now, new) in numbers {
        if new != 0 {
            *now = new;
        }
    }
    for (now, new) in [
        (&mut now.cpuset_cpus, update.cpuset_cpus),
        (&mut now.cpuset_mems, update.cpuset_mems),
    ] {
        if !new.is_empty() {
            *now = new;
        }
    }
    if !update.hugepage_limits.is_empty() {
        now.hugepage_limits = update.hugepage_limits;
    }
    now.unified.extend(update.unified);
}
