//! Options of the node's cgroups, from `KubeletConfiguration`.

use std::{collections::BTreeMap, time::Duration};

/// Options of the cgroups of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodCgroupOptions {
    /// Whether CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// Period of the CPU quota (`cpuCFSQuotaPeriod`).
    pub cpu_cfs_quota_period: Duration,
    /// Most processes and threads of a pod (`podPidsLimit`).
    pub pids_limit: Option<i64>,
    /// Protection of requested memory (`memoryReservationPolicy`), with cgroup v2; none without the
    /// feature gate `MemoryQoS`.
    pub memory_qos: Option<MemoryReservationPolicy>,
}

impl Default for PodCgroupOptions {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            pids_limit: None,
            memory_qos: None,
        }
    }
}

/// Protection of the memory that pods request from reclaim by the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryReservationPolicy {
    /// No protection.
    #[default]
    None,
    /// Hard for guaranteed pods (`memory.min`), soft for burstable ones (`memory.low`).
    Tiered,
}

/// Options of the container manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerManagerOptions {
    /// The cgroup in which `kubepods` is created (`cgroupRoot`), as a path of the cgroup file
    /// system.
    pub cgroup_root: String,
    /// Options of the cgroups of pods.
    pub pods: PodCgroupOptions,
    /// What is enforced (`enforceNodeAllocatable`).
    pub enforce: Vec<Enforcement>,
    /// The cgroup of the node's Kubernetes daemons (`kubeReservedCgroup`).
    pub kube_reserved_cgroup: String,
    /// The cgroup of the node's other daemons (`systemReservedCgroup`).
    pub system_reserved_cgroup: String,
    /// Percentage of the memory requests of a QoS class that lower classes cannot use
    /// (`qosReserved`).
    pub qos_reserved_memory: Option<i64>,
}

/// A limit that is enforced through a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// All pods together use at most the node's allocatable resources.
    Pods,
    /// The node's Kubernetes daemons use at most `kubeReserved`.
    KubeReserved,
    /// The node's other daemons use at most `systemReserved`.
    SystemReserved,
    /// As `KubeReserved`, CPU only.
    KubeReservedCompressible,
    /// As `SystemReserved`, CPU only.
    SystemReservedCompressible,
}

impl Enforcement {
    /// All values, as in the configuration.
    pub const ALL: [(&'static str, Self); 5] = [
        ("pods", Self::Pods),
        ("system-reserved", Self::SystemReserved),
        ("kube-reserved", Self::KubeReserved),
        (
            "system-reserved-compressible",
            Self::SystemReservedCompressible,
        ),
        ("kube-reserved-compressible", Self::KubeReservedCompressible),
    ];

    /// The configuration's value.
    pub fn as_str(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, value)| *value == self);
        found.map_or("", |(name, _)| name)
    }

    /// Whether only CPU is limited.
    pub(crate) const fn is_compressible(self) -> bool {
        matches!(
            self,
            Self::KubeReservedCompressible | Self::SystemReservedCompressible
        )
    }

    /// Parses a value of `enforceNodeAllocatable`; `none` is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let found = Self::ALL.into_iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| value)
    }
}

/// Amounts that a cgroup is limited to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// CPU in millicores.
    pub cpu: Option<i64>,
    /// Memory in bytes.
    pub memory: Option<i64>,
    /// Processes and threads.
    pub pids: Option<i64>,
    /// Bytes of huge pages by page size.
    pub huge_pages: BTreeMap<u64, u64>,
}

/// The node's resources, as far as cgroups limit them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLimits {
    /// All that the node has.
    pub capacity: Limits,
    /// The capacity without what is reserved.
    pub allocatable: Limits,
    /// `kubeReserved`.
    pub kube_reserved: Limits,
    /// `systemReserved`.
    pub system_reserved: Limits,
}
