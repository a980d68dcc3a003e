//! The options of the managers.

use kubelet_cpu_manager::StaticOptions;
use kubelet_host::cpu_set::CpuSet;
use kubelet_memory_manager::Reserved;
use kubelet_topology_manager::PolicyName;

/// Which managers have a policy. By default no manager has one, as upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceManagerOptions {
    /// The static policy of the CPU manager (`cpuManagerPolicy`).
    pub cpu: Option<CpuOptions>,
    /// The static policy of the memory manager (`memoryManagerPolicy`), with the memory that it
    /// reserves (`reservedMemory`).
    pub memory: Option<Reserved>,
    /// The policy of the topology manager (`topologyManagerPolicy`).
    pub topology: Option<TopologyOptions>,
}

/// Options of the CPU manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// `cpuManagerPolicyOptions`
    pub policy: StaticOptions,
    /// The CPUs of `reservedSystemCPUs`; empty if the manager chooses them.
    pub reserved: CpuSet,
    /// How many CPUs are reserved.
    pub reserved_count: usize,
    /// Whether containers with exclusive CPUs have a CPU quota too, which upstream's feature gate
    /// `DisableCPUQuotaWithExclusiveCPUs` decides.
    pub keeps_quota: bool,
}

/// Options of the topology manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyOptions {
    /// `topologyManagerPolicy`
    pub policy: PolicyName,
    /// `topologyManagerScope`
    pub scope: Scope,
    /// `prefer-closest-numa-nodes`
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`
    pub most_nodes: usize,
}

/// What is aligned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each container alone.
    #[default]
    Container,
    /// All containers of a pod.
    Pod,
}
