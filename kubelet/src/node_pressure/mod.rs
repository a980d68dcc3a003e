//! What eviction measures and does on this node.

mod measurements;

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_eviction::{
    Eviction, EvictionHost, MemoryMark, MemoryNotifier, Observed, PodUsages, Reclaim, UsageDepth,
};
use kubelet_garbage_collector::{ContainerCollector, ImageCollector, RemovedContainers};
use kubelet_pod_spec::identity::PodUid;
use kubelet_runtime::RuntimeManager;
use tokio::time::timeout;

pub(crate) use self::measurements::MachineMeasurements;
pub use self::measurements::{MeasurementSource, Measurements};
use crate::{
    active_pods::active_pods,
    pod::manager::PodManager,
    pod_syncer::Syncer,
    pod_worker::{Kill, PodWorkers},
    status::{StatusManager, Verdict},
};

/// The least time that an evicted pod has to end.
const MIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The node, for the eviction manager.
pub(crate) struct NodeHost<'a> {
    pub(crate) measurements: &'a dyn Measurements,
    pub(crate) pods: &'a PodManager,
    pub(crate) statuses: &'a StatusManager,
    pub(crate) workers: &'a PodWorkers<Syncer>,
    pub(crate) runtime: &'a RuntimeManager,
    pub(crate) containers: &'a ContainerCollector,
    pub(crate) images: &'a ImageCollector,
    pub(crate) events: &'a EventRecorder,
    pub(crate) notifier: MemoryNotifier,
}

impl EvictionHost for NodeHost<'_> {
    async fn observe(&self) -> Result<Observed, String> {
        self.measurements.observe().await
    }

    fn pods(&self) -> Vec<Arc<Pod>> {
        // What was asked for and not granted does not protect a pod.
        let pods = active_pods(self.pods, self.statuses, self.workers);
        let pods = pods.into_iter().map(|pod| self.runtime.granted(&pod));
        pods.collect()
    }

    async fn usages(&self, depth: UsageDepth) -> Result<PodUsages, String> {
        self.measurements.usages(depth).await
    }

    async fn reclaim(&self, what: Reclaim) -> Result<bool, String> {
        match what {
            Reclaim::Containers => {
                let removed = self.containers.remove_all_unused().await;
                let removed = removed.map_err(|error| error.to_string())?;
                Ok(removed != RemovedContainers::default())
            }
            Reclaim::Images => {
                let removed = self.images.remove_unused().await;
                let removed = removed.map_err(|error| error.to_string())?;
                Ok(removed.count > 0)
            }
        }
    }

    async fn evict(&self, pod: &Arc<Pod>, eviction: Eviction) -> Result<(), String> {
        let Eviction {
            message,
            grace_period,
            is_disruption,
        } = eviction;
        let uid = PodUid::of(pod);
        let verdict = Verdict {
            always_fails: false,
            reason: kubelet_eviction::REASON.to_owned(),
            disruption: is_disruption.then(|| message.clone()),
            message,
        };
        let kill = Kill {
            grace: Some(grace_period),
            deleted: false,
            verdict: Some(verdict),
        };
        self.workers.end(pod, kill);
        let limit = (grace_period + grace_period / 2).max(MIN_TIMEOUT);
        if timeout(limit, self.workers.containers_ended(&uid))
            .await
            .is_err()
        {
            let message = "Container runtime did not kill the pod within specified grace period.";
            let events = self.events;
            events.warning(Subject::Pod(pod), reason::EXCEEDED_GRACE_PERIOD, message);
            return Err(format!("its containers run on after {} s", limit.as_secs()));
        }
        Ok(())
    }

    async fn remove_containers(&self, pods: &[PodUid]) -> Result<(), String> {
        let removed = self.containers.remove_of(pods).await;
        removed.map(drop).map_err(|error| error.to_string())
    }

    async fn memory_is_scarce(&self, marks: &[MemoryMark]) {
        self.notifier.crossed(marks).await;
    }

    fn is_cleaned_up(&self, uid: &PodUid) -> bool {
        self.workers.has_settled(uid)
    }
}
