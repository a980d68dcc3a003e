//! The cgroups of pods, or none.

use std::sync::OnceLock;

use k8s_openapi::api::core::v1::Pod;

use kubelet_metrics::{Collector, Exposition};
use tokio::sync::Notify;

use crate::{ContainerManager, cgroup::CgroupError};

/// The container manager of a node, set once the runtime has told its cgroup driver. Never set if
/// pods have no cgroups of their own (`cgroupsPerQOS: false`).
#[derive(Debug, Default)]
pub struct PodCgroups {
    manager: OnceLock<ContainerManager>,
    changed: Notify,
}

impl PodCgroups {
    /// The container manager, if it was started.
    pub fn manager(&self) -> Option<&ContainerManager> {
        self.manager.get()
    }

    /// Sets the started container manager. The first one stays.
    pub fn set(&self, manager: ContainerManager) {
        let _ = self.manager.set(manager);
    }

    /// Tells that a pod got its cgroup, or lost it.
    pub fn announce_change(&self) {
        self.changed.notify_one();
    }

    /// Waits until the pods that have cgroups change.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The path in which the runtime creates the cgroups of the pod's containers; empty if the
    /// runtime chooses it.
    ///
    /// # Errors
    /// The pod's UID cannot be part of a cgroup's name.
    pub fn parent_of_containers(&self, pod: &Pod) -> Result<String, CgroupError> {
        match self.manager() {
            Some(manager) => manager.parent_of_containers(pod),
            None => Ok(String::new()),
        }
    }
}

impl Collector for PodCgroups {
    fn collect(&self, page: &mut Exposition) {
        if let Some(manager) = self.manager() {
            manager.collect(page);
        }
    }
}
