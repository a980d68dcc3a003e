//! The pod lifecycle event generator (PLEG): detects pods that changed in the runtime, reads their
//! details into the [`PodCache`], and notifies the sync loop.
//!
//! Changes are detected through the runtime's event stream if it has one, and otherwise by listing
//! the whole runtime every second. With events, lists are rare. An event only names the pod. Its
//! contents were true at some time of the runtime's clock; a status that is read after it was true
//! at a time that the cache can compare with a worker's change.
//!
//! Upstream's events are behind its EventedPLEG gate, which is off. Here they are used whenever the
//! runtime serves them, and no longer trusted when a list shows a change without an event.
//!
//! A pod whose details cannot be read, or hang, does not delay other pods.

mod cache;
mod events;
mod inspect;
mod metrics;
mod reading;
mod record;
mod relist;
mod reported_changes;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use kubelet_cri_client::{CriClient, pod_status::ContainerState};
use kubelet_host::clock;
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

pub use self::{
    cache::{CacheError, PodCache},
    record::{ContainerRecord, PodRecord, Records, group},
};
use self::{
    events::EventWatch, metrics::PlegMetrics, relist::Relisting, reported_changes::ReportedChange,
};
use crate::oom_watcher::OomWatcher;

/// The generator is unhealthy without a complete list for this long, as upstream.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
/// Capacity of the channel of events; more of them wait in the runtime.
const HINTS: usize = 256;

/// What happened to a container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It runs.
    Started,
    /// It ended.
    Died,
    /// The runtime does not list it any more.
    Removed,
    /// It exists, and was never started.
    Created,
    /// The runtime does not know any more whether it runs.
    Lost,
}

/// A container or sandbox whose state changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerChange {
    /// Its ID in the runtime.
    pub id: String,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// The changes of one pod, which the pod cache already has.
#[derive(Clone, Debug)]
pub struct PodLifecycleEvent {
    /// The pod.
    pub uid: PodUid,
    /// The containers and sandboxes that changed.
    pub changes: Vec<ContainerChange>,
}

/// The pods in the runtime, as far as is known.
#[derive(Debug, Default)]
pub struct Listing {
    /// The start of the last complete list; `None` before the first.
    pub at: Option<Instant>,
    /// The list, updated with the pods that were read since.
    pub records: Records,
}

/// The generator. One task runs [`Pleg::run`]; any task may call the rest.
#[derive(Debug)]
pub struct Pleg {
    cri: CriClient,
    cache: Arc<PodCache>,
    oom_watcher: Arc<OomWatcher>,
    listing: ArcSwap<Listing>,
    requests: Mutex<PlegRequests>,
    wake: Notify,
    /// When the last list was completed, or the generator was started.
    relisted: Mutex<Option<Instant>>,
    /// Whether the runtime's events report changes.
    evented: AtomicBool,
    /// The event stream missed a change.
    deaf: Notify,
    metrics: PlegMetrics,
}

/// Requests by other parts.
#[derive(Debug, Default)]
struct PlegRequests {
    relist: bool,
    /// Pods, and the time that their status has to be newer than.
    pods: BTreeMap<PodUid, Instant>,
}

/// The content of an event.
#[derive(Debug)]
enum EventHint {
    /// This container or sandbox of the pod changed.
    Pod(PodUid, ReportedChange),
    /// Something changed.
    Something,
}

impl Pleg {
    /// A generator that has not listed yet.
    pub(crate) fn new(cri: CriClient, cache: Arc<PodCache>, oom_watcher: Arc<OomWatcher>) -> Self {
        Self {
            cri,
            cache,
            oom_watcher,
            listing: ArcSwap::default(),
            requests: Mutex::default(),
            wake: Notify::new(),
            relisted: Mutex::new(None),
            evented: AtomicBool::new(false),
            deaf: Notify::new(),
            metrics: PlegMetrics::default(),
        }
    }

    /// The pods in the runtime.
    pub fn listing(&self) -> Arc<Listing> {
        self.listing.load_full()
    }

    /// Lists the runtime soon, for callers that need to know what is gone.
    pub fn request_relist(&self) {
        self.requests.lock().relist = true;
        self.wake.notify_one();
    }

    /// Reads one pod now, because it was changed or will be; its status has to be newer than `min`.
    pub fn request(&self, uid: &PodUid, min: Instant) {
        let mut requests = self.requests.lock();
        let wanted = requests.pods.entry(uid.clone()).or_insert(min);
        *wanted = min.max(*wanted);
        drop(requests);
        self.wake.notify_one();
    }

    /// Whether the runtime's events report changes now; if not, it is listed every second.
    pub fn is_evented(&self) -> bool {
        self.evented.load(Ordering::Acquire)
    }

    /// Reads the details of a pod soon, after a change that a list does not show.
    pub fn request_inspection(&self, uid: &PodUid) {
        self.request(uid, Instant::now());
    }

    /// # Errors
    /// A message with the time since the runtime was last listed.
    pub fn healthy(&self) -> Result<(), String> {
        let Some(relisted) = *self.relisted.lock() else {
            return Ok(());
        };
        let elapsed = relisted.elapsed();
        if elapsed <= RELIST_THRESHOLD {
            return Ok(());
        }
        Err(format!(
            "pleg was last seen active {elapsed:.0?} ago; threshold is {RELIST_THRESHOLD:?}"
        ))
    }

    /// Detects changes until cancelled.
    pub async fn run(&self, events: mpsc::Sender<PodLifecycleEvent>, cancel: CancellationToken) {
        *self.relisted.lock() = Some(Instant::now());
        let (hints_in, hints) = mpsc::channel(HINTS);
        let watch = EventWatch::new(self, hints_in).run().boxed();
        let relisting = Relisting::new(self, events).run(hints).boxed();
        let both = async { tokio::join!(watch, relisting) };
        // Neither returns by itself.
        let _ = cancel.run_until_cancelled(both).await;
    }
}

impl Collector for Pleg {
    /// The metrics of the generator, and the numbers of running pods and containers.
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
        if let Some(relisted) = *self.relisted.lock() {
            let seen = clock::now()
                .as_second()
                .saturating_sub_unsigned(relisted.elapsed().as_secs());
            page.gauge(
                "kubelet_pleg_last_seen_seconds",
                "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
                seen,
            );
        }
        let listing = self.listing();
        if listing.at.is_none() {
            return;
        }
        let records = listing.records.values();
        let running = records.filter(|pod| pod.sandboxes.iter().any(|(_, ready)| *ready));
        page.gauge(
            "kubelet_running_pods",
            "[ALPHA] Number of pods that have a running pod sandbox",
            running.count(),
        );
        let name = "kubelet_running_containers";
        page.family(
            name,
            "gauge",
            "[ALPHA] Number of containers currently running",
        );
        for (state, label) in [
            (ContainerState::Created, "created"),
            (ContainerState::Exited, "exited"),
            (ContainerState::Running, "running"),
            (ContainerState::Unknown, "unknown"),
        ] {
            let containers = listing.records.values().flat_map(|pod| &pod.containers);
            let count = containers
                .filter(|container| container.state == state)
                .count();
            page.sample(name, &[("container_state", label)], count, None);
        }
    }
}
