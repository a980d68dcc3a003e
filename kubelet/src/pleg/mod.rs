//! The pod lifecycle event generator: finds the pods of which something changed
//! in the runtime, reads their details into the [`PodCache`], and tells the sync
//! loop about them.
//!
//! What tells of a change is the runtime's event stream where there is one, and
//! a list of the whole runtime where not: every second then, and now and then
//! behind the events. An event only names the pod. What it says of it was true at
//! some time by the runtime's clock; what is read after it was true at a time
//! that the cache can compare with a worker's change.
//!
//! Upstream has the events behind its EventedPLEG gate, which is off. Here they
//! are used whenever the runtime serves them, and distrusted when a list shows
//! what no event told of.
//!
//! A pod whose details cannot be read, or hang, holds up nobody else.

mod cache;
mod events;
mod inspect;
mod metrics;
mod reading;
mod record;
mod relist;
mod told;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
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
use self::{events::EventWatch, metrics::PlegMetrics, relist::Relisting, told::Told};

/// Without a complete list for so long the generator is unhealthy, as upstream.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
/// What the events tell of and is not taken up yet; more wait in the runtime.
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
    /// It is there, and was never started.
    Created,
    /// The runtime cannot tell any more whether it runs.
    Lost,
}

/// A container or sandbox of which the state changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerChange {
    /// Its id in the runtime.
    pub id: String,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// The changes of one pod, after the pod cache has them.
#[derive(Clone, Debug)]
pub struct PodLifecycleEvent {
    /// The pod.
    pub uid: PodUid,
    /// Each container and sandbox that changed.
    pub changes: Vec<ContainerChange>,
}

/// What the runtime has, as far as is known.
#[derive(Debug, Default)]
pub struct Listing {
    /// When the last complete list was begun; `None` before the first.
    pub at: Option<Instant>,
    /// What it says, and what was read of single pods since.
    pub records: Records,
}

/// The generator. One task runs [`Pleg::run`]; the rest may be called by any.
#[derive(Debug)]
pub struct Pleg {
    cri: CriClient,
    cache: Arc<PodCache>,
    listing: ArcSwap<Listing>,
    asked: Mutex<Asked>,
    wake: Notify,
    /// When the last list was completed, or the generator was started.
    relisted: Mutex<Option<Instant>>,
    /// Whether the runtime's events tell of what changes.
    evented: AtomicBool,
    /// The event stream told nothing of a change.
    deaf: Notify,
    metrics: PlegMetrics,
}

/// What others want to be read.
#[derive(Debug, Default)]
struct Asked {
    relist: bool,
    /// Pods, and what their status has to be newer than.
    pods: BTreeMap<PodUid, Instant>,
}

/// What an event tells.
#[derive(Debug)]
enum Hint {
    /// This of the pod changed.
    Pod(PodUid, Told),
    /// Something changed.
    Something,
}

impl Pleg {
    /// A generator that has not listed yet.
    pub fn new(cri: CriClient, cache: Arc<PodCache>) -> Self {
        Self {
            cri,
            cache,
            listing: ArcSwap::default(),
            asked: Mutex::default(),
            wake: Notify::new(),
            relisted: Mutex::new(None),
            evented: AtomicBool::new(false),
            deaf: Notify::new(),
            metrics: PlegMetrics::default(),
        }
    }

    /// What the runtime has.
    pub fn listing(&self) -> Arc<Listing> {
        self.listing.load_full()
    }

    /// Lists everything soon: somebody wants to be sure of what is gone.
    pub fn request_relist(&self) {
        self.asked.lock().relist = true;
        self.wake.notify_one();
    }

    /// Reads one pod at once: somebody changed it, or means to, and its status
    /// has to be newer than `min`.
    pub fn request(&self, uid: &PodUid, min: Instant) {
        let mut asked = self.asked.lock();
        let wanted = asked.pods.entry(uid.clone()).or_insert(min);
        *wanted = min.max(*wanted);
        drop(asked);
        self.wake.notify_one();
    }

    /// Whether the runtime's events tell of changes now; if not, it is listed
    /// every second.
    pub fn is_evented(&self) -> bool {
        self.evented.load(Ordering::Acquire)
    }

    /// Reads the details of a pod soon: somebody changed something of it that a
    /// list does not show.
    pub fn request_inspection(&self, uid: &PodUid) {
        self.request(uid, Instant::now());
    }

    /// # Errors
    /// For people: for how long the runtime was not listed.
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

    /// Looks for changes until cancelled.
    pub async fn run(&self, events: mpsc::Sender<PodLifecycleEvent>, cancel: CancellationToken) {
        *self.relisted.lock() = Some(Instant::now());
        let (hints_in, hints) = mpsc::channel(HINTS);
        let watch = EventWatch::new(self, hints_in).run();
        let relisting = Relisting::new(self, events).run(hints);
        let both = async { tokio::join!(watch, relisting) };
        // Neither ends by itself.
        let _ = cancel.run_until_cancelled(both).await;
    }
}

impl Collector for Pleg {
    /// How the runtime is looked at, and what it was last seen to run.
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
