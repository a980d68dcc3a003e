//! The pods that the resource analyzer measures.

use std::sync::Arc;

use kubelet_host::local_node::LocalNode;
use kubelet_pod_spec::{directory, identity::PodUid};
use kubelet_resource_analyzer::{MeasuredPod, PodSource};
use kubelet_volume::VolumeManager;

use crate::{
    active_pods::active_pods, pod::manager::PodManager, pod_syncer::Syncer, pod_worker::PodWorkers,
    status::StatusManager,
};

/// The active pods, with their mounted volumes and the paths of their files.
#[derive(Debug)]
pub(crate) struct MeasuredPods {
    pub(crate) pods: Arc<PodManager>,
    pub(crate) statuses: Arc<StatusManager>,
    pub(crate) workers: Arc<PodWorkers<Syncer>>,
    pub(crate) volumes: Arc<VolumeManager>,
    pub(crate) node: Arc<LocalNode>,
}

impl PodSource for MeasuredPods {
    fn pods(&self) -> Vec<MeasuredPod> {
        let pods = active_pods(&self.pods, &self.statuses, &self.workers);
        let measured = pods.into_iter().map(|pod| {
            let uid = PodUid::of(&pod);
            let pod_dir = directory::pod_dir(&self.node.root_dir, &uid);
            MeasuredPod {
                volumes: self.volumes.usage_sources(&uid),
                log_dir: directory::log_dir(&self.node.pod_logs_dir, &pod),
                etc_hosts: directory::etc_hosts(&pod_dir),
                pod,
            }
        });
        measured.collect()
    }
}
