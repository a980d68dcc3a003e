//! Ends the pods of a node that shuts down.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_node::shutdown::order::{Group, ShutdownGracePeriod, grouped};
use kubelet_pod_spec::identity::{self, PodUid};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::{
    active_pods::active_pods,
    pod::manager::PodManager,
    pod_syncer::Syncer,
    pod_worker::{Kill, PodWorkers},
    status::{StatusManager, Verdict},
};

/// Ends pods through their workers.
pub(crate) struct PodKiller<'a> {
    pub(crate) pods: &'a PodManager,
    pub(crate) statuses: &'a StatusManager,
    pub(crate) workers: &'a PodWorkers<Syncer>,
}

impl PodKiller<'_> {
    /// Ends all pods in the order of `periods`, and waits for each group no longer than its period.
    pub(crate) async fn end(&self, periods: &[ShutdownGracePeriod]) {
        let pods = active_pods(self.pods, self.statuses, self.workers);
        for group in grouped(periods, pods) {
            self.end_group(&group).await;
        }
    }

    async fn end_group(&self, group: &Group) {
        let ShutdownGracePeriod { priority, period } = group.grace;
        info!(
            priority,
            pods = group.pods.len(),
            ?period,
            "the node is shutting down; terminating the pods of a priority"
        );
        for pod in &group.pods {
            let kill = Kill {
                grace: Some(own_period(pod).map_or(period, |own| own.min(period))),
                deleted: false,
                verdict: Some(verdict()),
            };
            self.workers.end(pod, kill);
        }
        // Volumes may be unmounted by pods that end later, so wait for the release of resources.
        let settled = async {
            for pod in &group.pods {
                self.workers.settled(&PodUid::of(pod)).await;
            }
        };
        if timeout(period, settled).await.is_err() {
            let left = group.pods.iter().filter(|pod| !self.has_settled(pod));
            let left: Vec<String> = left.map(|pod| identity::full_name(pod)).collect();
            warn!(
                priority,
                ?period,
                pods = left.join(", "),
                "pods did not terminate in time; continuing the shutdown"
            );
        }
    }

    fn has_settled(&self, pod: &Pod) -> bool {
        self.workers.has_settled(&PodUid::of(pod))
    }
}

/// The pod's own grace period.
fn own_period(pod: &Arc<Pod>) -> Option<Duration> {
    let seconds = pod.spec.as_ref()?.termination_grace_period_seconds?;
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

/// The final status of a pod that ends with the node, with upstream's messages.
fn verdict() -> Verdict {
    let message = "Pod was terminated in response to imminent node shutdown.";
    Verdict {
        always_fails: false,
        reason: "Terminated".to_owned(),
        message: message.to_owned(),
        disruption: Some(message.to_owned()),
    }
}
