//! The workers of all probes, started and stopped with their pods.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use kubelet_api_client::events::EventRecorder;
use kubelet_cri_client::CriClient;
use kubelet_host::clock;
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::{identity::PodUid, restart_rules};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::{
    metrics::ProbeMetrics,
    results::{ProbeResult, ProbeResults, ProbeType},
    worker::{ProbedContainer, Worker},
};

/// A container that has been running for longer than this when the kubelet starts existed before,
/// as upstream.
const RESTART_GRACE: SignedDuration = SignedDuration::from_secs(10);

/// Starts and stops the workers of probes. Results are in [`ProbeResults`]; pods whose results
/// changed are sent to a channel.
#[derive(Debug)]
pub struct ProbeManager(Arc<Shared>);

/// The last generated status of a pod.
type StatusSource = dyn Fn(&PodUid) -> Option<Arc<PodStatus>> + Send + Sync;

/// State shared by all workers.
pub(super) struct Shared {
    pub(super) cri: CriClient,
    pub(super) events: EventRecorder,
    pub(super) statuses: Box<StatusSource>,
    pub(super) results: Arc<ProbeResults>,
    /// Receives pods whose probe results changed.
    changes: mpsc::Sender<PodUid>,
    workers: Mutex<BTreeMap<Key, Handle>>,
    /// The start of this kubelet.
    pub(super) begun: Instant,
    begun_at: Timestamp,
    tasks: TaskTracker,
    cancel: CancellationToken,
    pub(super) metrics: ProbeMetrics,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("workers", &self.workers.lock().len())
            .finish_non_exhaustive()
    }
}

/// Identifies a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) uid: PodUid,
    pub(super) container: String,
    pub(super) kind: ProbeType,
}

#[derive(Debug)]
struct Handle {
    cancel: CancellationToken,
    /// Whether the container is not an init container.
    regular: bool,
    prompt: Arc<Notify>,
}

impl ProbeManager {
    /// A manager without workers; they end with `cancel`. `statuses` provides container states and
    /// pod IPs, `changes` receives pods whose probe results changed, and `events` reports failing
    /// probes.
    pub fn new(
        cri: CriClient,
        events: EventRecorder,
        statuses: impl Fn(&PodUid) -> Option<Arc<PodStatus>> + Send + Sync + 'static,
        results: Arc<ProbeResults>,
        changes: mpsc::Sender<PodUid>,
        cancel: CancellationToken,
    ) -> Self {
        Self(Arc::new(Shared {
            cri,
            events,
            statuses: Box::new(statuses),
            results,
            changes,
            workers: Mutex::default(),
            begun: Instant::now(),
            begun_at: clock::now(),
            tasks: TaskTracker::new(),
            cancel,
            metrics: ProbeMetrics::default(),
        }))
    }

    /// Starts a worker for each probe of the pod that has none.
    pub fn add_pod(&self, pod: &Arc<Pod>) {
        let Some(spec) = &pod.spec else {
            return;
        };
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|container| restart_rules::is_sidecar(container));
        for (container, regular) in spec
            .containers
            .iter()
            .map(|container| (container, true))
            .chain(sidecars.map(|container| (container, false)))
        {
            self.add_container(pod, container, regular);
        }
    }

    fn add_container(&self, pod: &Arc<Pod>, container: &Container, regular: bool) {
        let probes = [
            (ProbeType::Startup, &container.startup_probe),
            (ProbeType::Readiness, &container.readiness_probe),
            (ProbeType::Liveness, &container.liveness_probe),
        ];
        let mut probed: Option<Arc<ProbedContainer>> = None;
        let mut workers = self.0.workers.lock();
        for (kind, probe) in probes {
            let Some(probe) = probe else {
                continue;
            };
            let key = Key {
                uid: PodUid::of(pod),
                container: container.name.clone(),
                kind,
            };
            let Entry::Vacant(entry) = workers.entry(key.clone()) else {
                continue;
            };
            let probed = probed.get_or_insert_with(|| {
                Arc::new(ProbedContainer {
                    container: container.clone(),
                    pod: Arc::clone(pod),
                    sidecar: !regular,
                })
            });
            let handle = Handle {
                cancel: self.0.cancel.child_token(),
                regular,
                prompt: Arc::default(),
            };
            let worker = Worker::new(
                key,
                Arc::clone(probed),
                probe.clone(),
                Arc::clone(&handle.prompt),
                Arc::clone(&self.0),
            );
            let cancel = handle.cancel.clone();
            entry.insert(handle);
            let work = async move {
                cancel.run_until_cancelled(worker.run()).await;
            };
            self.0.tasks.spawn(work.in_current_span());
        }
    }

    /// A new status of the pod was generated: probes the containers that wait for their first
    /// readiness now.
    pub fn prompt_readiness(&self, uid: &PodUid) {
        for (key, handle) in self.0.workers.lock().range(first(uid)..) {
            if key.uid != *uid {
                break;
            }
            if key.kind == ProbeType::Readiness {
                handle.prompt.notify_one();
            }
        }
    }

    /// The pod is terminating: liveness and startup probes stop, because nothing is restarted;
    /// readiness continues. Sidecars are probed until they exit, as upstream.
    pub fn stop_liveness_and_startup(&self, uid: &PodUid) {
        self.stop(|key, handle| {
            key.uid == *uid && handle.regular && key.kind != ProbeType::Readiness
        });
    }

    /// The pod has terminated.
    pub fn remove_pod(&self, uid: &PodUid) {
        self.stop(|key, _| key.uid == *uid);
    }

    /// Stops the workers of all pods except those that `keep` selects.
    pub fn cleanup(&self, keep: impl Fn(&PodUid) -> bool) {
        self.stop(|key, _| !keep(&key.uid));
    }

    /// Waits for the tasks of all workers after cancellation.
    pub async fn ended(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    /// A stopped worker removes itself from the map.
    fn stop(&self, which: impl Fn(&Key, &Handle) -> bool) {
        for (key, handle) in &*self.0.workers.lock() {
            if which(key, handle) {
                handle.cancel.cancel();
            }
        }
    }
}

impl Collector for ProbeManager {
    /// The probe metrics of current pods.
    fn collect(&self, page: &mut Exposition) {
        self.0.metrics.collect(page);
    }
}

impl Shared {
    /// Whether a container that has been running since `started` existed before this kubelet.
    pub(super) fn is_older(&self, started: Timestamp) -> bool {
        self.begun_at.duration_since(started) > RESTART_GRACE
    }

    /// Stores a result, and requests a sync of the pod if the result changed.
    pub(super) async fn set(&self, key: &Key, container_id: &str, result: ProbeResult) -> bool {
        let changed = self.results.set(container_id, key.kind, result);
        let matters = key.kind != ProbeType::Liveness || result == ProbeResult::Failure;
        if changed && matters {
            // Fails only during shutdown, when there is no receiver.
            let _ = self.changes.send(key.uid.clone()).await;
        }
        changed
    }

    /// Whether the probe has a worker.
    pub(super) fn has_worker(&self, key: &Key) -> bool {
        self.workers.lock().contains_key(key)
    }

    /// Removes the worker of a probe.
    pub(super) fn forget(&self, key: &Key) {
        self.workers.lock().remove(key);
    }
}

/// The smallest key of a pod.
fn first(uid: &PodUid) -> Key {
    Key {
        uid: uid.clone(),
        container: String::new(),
        kind: ProbeType::Liveness,
    }
}

#[cfg(test)]
mod tests;
