//! The pods that occupy resources of the node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{identity::PodUid, phase::Phase};

use crate::{
    pod::manager::PodManager, pod_syncer::Syncer, pod_worker::PodWorkers, status::StatusManager,
};

/// The pods that run or will run. Excludes pods in a terminal phase whose containers have all
/// ended.
pub(crate) fn active_pods(
    pods: &PodManager,
    statuses: &StatusManager,
    workers: &PodWorkers<Syncer>,
) -> Vec<Arc<Pod>> {
    let mut pods = pods.pods();
    pods.retain(|pod| is_active(pod, statuses, workers));
    pods
}

/// Whether the pod runs or will run.
pub(crate) fn is_active(pod: &Pod, statuses: &StatusManager, workers: &PodWorkers<Syncer>) -> bool {
    let uid = PodUid::of(pod);
    let status = statuses.get(&uid);
    // A pod that ended under an earlier kubelet has no status here yet.
    let status = status.as_deref().or(pod.status.as_ref());
    let phase = status.and_then(|status| status.phase.as_deref());
    !(Phase::parse(phase).is_terminal() && workers.has_ended(&uid))
}
