//! The options of the cgroups of pods, from the configuration.

use kubelet_container_manager::{
    ContainerManagerOptions, Enforcement, MemoryReservationPolicy, PodCgroupOptions, cgroup::Driver,
};
use kubelet_pod_spec::{quantity, resources::Amounts};

use super::{
    kubelet_configuration::{KubeletConfiguration, StringMap},
    values::span,
};
use crate::pod_cgroups::{
    limits,
    options::{CgroupOptions, CgroupSource},
};

/// The options of a validated configuration; none if pods have no cgroups.
pub(super) fn cgroups(config: &KubeletConfiguration) -> Option<CgroupOptions> {
    if config.cgroups_per_qos == Some(false) {
        return None;
    }
    let default = PodCgroupOptions::default();
    let levels = config.enforce_node_allocatable.iter().flatten();
    Some(CgroupOptions {
        driver: match config.cgroup_driver.as_str() {
            "systemd" => Driver::Systemd,
            _ => Driver::Cgroupfs,
        },
        manager: ContainerManagerOptions {
            cgroup_root: config.cgroup_root.clone(),
            pods: PodCgroupOptions {
                cpu_cfs_quota: config.cpu_cfs_quota.unwrap_or(default.cpu_cfs_quota),
                cpu_cfs_quota_period: config
                    .cpu_cfs_quota_period
                    .map_or(default.cpu_cfs_quota_period, span),
                pids_limit: config.pod_pids_limit.filter(|limit| *limit > 0),
                memory_reservation: match config.memory_reservation_policy.as_str() {
                    "TieredReservation" => MemoryReservationPolicy::Tiered,
                    _ => MemoryReservationPolicy::None,
                },
            },
            enforce: levels
                .filter_map(|level| Enforcement::parse(level))
                .collect(),
            kube_reserved_cgroup: config.kube_reserved_cgroup.clone(),
            system_reserved_cgroup: config.system_reserved_cgroup.clone(),
        },
        kube_reserved: limits::of_amounts(&amounts(&config.kube_reserved)),
        system_reserved: limits::of_amounts(&amounts(&config.system_reserved)),
        source: CgroupSource::Machine,
    })
}

fn amounts(list: &StringMap) -> Amounts {
    list.iter()
        .filter_map(|(name, amount)| Some((name.clone(), quantity::parse(amount).ok()?)))
        .collect()
}
