//! Options of the cgroups of pods.

use std::sync::Arc;

use kubelet_container_manager::{
    ContainerManagerOptions, Limits,
    cgroup::{CgroupError, Cgroups, Driver, NodeCgroups},
};

/// Options of the cgroups of pods.
#[derive(Clone, Debug)]
pub struct CgroupOptions {
    /// The driver if the runtime does not tell its own (`cgroupDriver`).
    pub driver: Driver,
    /// What is created and enforced.
    pub manager: ContainerManagerOptions,
    /// Resources of the node's Kubernetes daemons (`kubeReserved`).
    pub kube_reserved: Limits,
    /// Resources of the node's other daemons (`systemReserved`).
    pub system_reserved: Limits,
    /// Where cgroups are created.
    pub source: CgroupSource,
}

/// Where cgroups are created.
#[derive(Clone, Debug)]
pub enum CgroupSource {
    /// On this machine.
    Machine,
    /// Elsewhere, such as in memory.
    Given(Arc<dyn Cgroups>),
}

impl CgroupSource {
    /// The cgroups of this machine; blocking.
    pub(super) fn find(
        driver: Driver,
        page_sizes: Vec<u64>,
    ) -> Result<Arc<dyn Cgroups>, CgroupError> {
        Ok(Arc::new(NodeCgroups::find(driver, page_sizes)?))
    }
}
