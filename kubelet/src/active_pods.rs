//! Which pods have their place on the node.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{identity::PodUid, phase::Phase};

use crate::{
    pod::manager::PodManager, pod_syncer::Syncer, pod_worker::PodWorkers, status::StatusManager,
};

/// The pods that run, or are to run; what is done and of which nothing runs is none of them.
pub(crate) fn active_pods(
    pods: &PodManager,
    statuses: &StatusManager,
    workers: &PodWorkers<Syncer>,
) -> Vec<Arc<Pod>> {
    let mut pods = pods.pods();
    pods.retain(|pod| {
        let uid = PodUid::of(pod);
        let status = statuses.get(&uid);
        // One that ended under an earlier kubelet has no status here yet.
        let status = status.as_deref().or(pod.status.as_ref());
        let phase = status.and_then(|status| status.phase.as_deref());
        !(Phase::parse(phase).is_terminal() && workers.has_ended(&uid))
    });
    pods
}
