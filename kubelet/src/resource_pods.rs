//! The pods that the pod resources API shows.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_resources::PodSource;

use crate::{
    active_pods::{active_pods, is_active},
    pod::manager::PodManager,
    pod_syncer::Syncer,
    pod_worker::PodWorkers,
    status::StatusManager,
};

/// The pods of the kubelet.
pub(crate) struct ResourcePods {
    pub(crate) pods: Arc<PodManager>,
    pub(crate) statuses: Arc<StatusManager>,
    pub(crate) workers: Arc<PodWorkers<Syncer>>,
    /// Whether only pods that run or will run are listed.
    pub(crate) lists_active: bool,
}

impl fmt::Debug for ResourcePods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResourcePods").finish_non_exhaustive()
    }
}

impl PodSource for ResourcePods {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods.pods()
    }

    fn listed_pods(&self) -> Vec<Arc<Pod>> {
        match self.lists_active {
            true => active_pods(&self.pods, &self.statuses, &self.workers),
            false => self.pods(),
        }
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pod = self.pods.get_by_full_name(&format!("{name}_{namespace}"))?;
        is_active(&pod, &self.statuses, &self.workers).then_some(pod)
    }
}
