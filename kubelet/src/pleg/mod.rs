//! The pod lifecycle event generator: lists the runtime every second, reads the
//! details of the pods that changed into the [`PodCache`], and tells the sync
//! loop about them.
//!
//! A list in which nothing changed costs its two calls. A pod whose details
//! cannot be read, or hang, holds up nobody else.

mod cache;
mod record;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, Semaphore, mpsc},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

pub use self::{
    cache::{CacheError, PodCache},
    record::{ContainerRecord, PodRecord, Records, group},
};
use crate::{
    pod::identity::PodUid,
    runtime::{cri::CriClient, inspect, pod_status::PodStatus},
};

/// Between the starts of two lists.
const RELIST_PERIOD: Duration = Duration::from_secs(1);
/// Between the starts of two lists of which somebody asked for the second.
const REQUESTED_RELIST_PERIOD: Duration = Duration::from_millis(100);
/// Without a complete list for so long the generator is unhealthy, as upstream.
const RELIST_THRESHOLD: Duration = Duration::from_secs(180);
/// Pods whose details are read at the same time.
const INSPECTIONS: usize = 8;
/// For the details of one pod.
const INSPECTION_DEADLINE: Duration = Duration::from_secs(10);

/// What happened to a container or sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It runs.
    Started,
    /// It ended.
    Died,
    /// The runtime does not list it any more.
    Removed,
    /// Its state is another one, neither running nor ended.
    Changed,
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

/// One list of the runtime.
#[derive(Debug, Default)]
pub struct Listing {
    /// When it was begun; `None` before the first.
    pub at: Option<Instant>,
    /// What it says.
    pub records: Records,
}

/// The generator. One task runs [`Pleg::run`]; the rest may be called by any.
#[derive(Debug)]
pub struct Pleg {
    cri: CriClient,
    cache: Arc<PodCache>,
    listing: ArcSwap<Listing>,
    requested: Notify,
    /// Pods whose details are to be read though the list may not show a change.
    to_inspect: Mutex<BTreeSet<PodUid>>,
    /// When the last list was completed, or the generator was started.
    relisted: Mutex<Option<Instant>>,
}

impl Pleg {
    /// A generator that has not listed yet.
    pub fn new(cri: CriClient, cache: Arc<PodCache>) -> Self {
        Self {
            cri,
            cache,
            listing: ArcSwap::default(),
            requested: Notify::new(),
            to_inspect: Mutex::default(),
            relisted: Mutex::new(None),
        }
    }

    /// The last complete list.
    pub fn listing(&self) -> Arc<Listing> {
        self.listing.load_full()
    }

    /// Lists soon: somebody changed something in the runtime.
    pub fn request_relist(&self) {
        self.requested.notify_one();
    }

    /// Reads the details of a pod soon: somebody changed something of it that a
    /// list does not show.
    pub fn request_inspection(&self, uid: &PodUid) {
        self.to_inspect.lock().insert(uid.clone());
        self.request_relist();
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

    /// Lists until cancelled.
    pub async fn run(&self, events: mpsc::Sender<PodLifecycleEvent>, cancel: CancellationToken) {
        *self.relisted.lock() = Some(Instant::now());
        let mut state = Relisting {
            pleg: self,
            events,
            inspected: Records::new(),
            inspecting: BTreeMap::new(),
            inspections: JoinSet::new(),
            permits: Arc::new(Semaphore::new(INSPECTIONS)),
            failing: false,
        };
        let mut begun = Instant::now();
        let mut next = begun;
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(done) = state.inspections.join_next_with_id() => state.finish(done).await,
                () = self.requested.notified() => next = next.min(begun + REQUESTED_RELIST_PERIOD),
                () = tokio::time::sleep_until(next) => {
                    begun = Instant::now();
                    // A runtime that hangs must not hold up the end.
                    let relist = state.relist(begun);
                    if cancel.run_until_cancelled(relist).await.is_none() {
                        return;
                    }
                    next = begun + RELIST_PERIOD;
                }
            }
        }
    }
}

/// The details of a pod, or why they cannot be read.
type Inspection = (PodUid, Result<PodStatus, String>);

/// What the task of the generator alone knows.
struct Relisting<'a> {
    pleg: &'a Pleg,
    events: mpsc::Sender<PodLifecycleEvent>,
    /// Each pod as it was listed when its details were last read.
    inspected: Records,
    /// Pods whose details are being read.
    inspecting: BTreeMap<PodUid, (Id, PodRecord, Instant)>,
    inspections: JoinSet<Inspection>,
    permits: Arc<Semaphore>,
    failing: bool,
}

impl Relisting<'_> {
    async fn relist(&mut self, begun: Instant) {
        let cri = &self.pleg.cri;
        let lists = tokio::try_join!(cri.list_pod_sandboxes(), cri.list_containers());
        let (sandboxes, containers) = match lists {
            Ok(lists) => lists,
            Err(error) => {
                // Once, not every second.
                if !self.failing {
                    warn!(%error, "cannot list the runtime's pods; trying on");
                }
                self.failing = true;
                return;
            }
        };
        if self.failing {
            info!("the runtime lists its pods again");
            self.failing = false;
        }
        let records = record::group(sandboxes, containers);
        let mut asked = std::mem::take(&mut *self.pleg.to_inspect.lock());
        for (uid, record) in &records {
            if self.inspecting.contains_key(uid) {
                continue;
            }
            let is_asked = asked.remove(uid);
            if is_asked || self.inspected.get(uid) != Some(record) {
                self.inspect(uid, record, begun);
            }
        }
        // What is being read may have been read before it was changed.
        asked.retain(|uid| records.contains_key(uid));
        self.pleg.to_inspect.lock().extend(asked);
        let gone: Vec<PodUid> = self
            .inspected
            .keys()
            .filter(|uid| !records.contains_key(*uid))
            .cloned()
            .collect();
        let listing = Listing {
            at: Some(begun),
            records,
        };
        self.pleg.listing.store(Arc::new(listing));
        for uid in &gone {
            // A read that is under way would bring the pod back.
            self.abandon(uid);
            self.pleg.cache.remove(uid);
        }
        self.pleg.cache.listed(begun);
        *self.pleg.relisted.lock() = Some(Instant::now());
        for uid in gone {
            if let Some(old) = self.inspected.remove(&uid) {
                let changes = old.changes(&PodRecord::default());
                self.emit(PodLifecycleEvent { uid, changes }).await;
            }
        }
    }

    fn abandon(&mut self, uid: &PodUid) {
        self.inspecting.remove(uid);
    }

    fn inspect(&mut self, uid: &PodUid, record: &PodRecord, begun: Instant) {
        self.pleg.cache.begin_inspection(uid);
        let cri = self.pleg.cri.clone();
        let permits = Arc::clone(&self.permits);
        let known = self.pleg.cache.get(uid).unwrap_or_default();
        let (uid_of_task, record_of_task) = (uid.clone(), record.clone());
        let task = self.inspections.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let read = inspect::inspect(&cri, &record_of_task, &known);
            let status = match tokio::time::timeout(INSPECTION_DEADLINE, read).await {
                Ok(Ok(status)) => Ok(status),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err(format!("no answer within {INSPECTION_DEADLINE:?}")),
            };
            (uid_of_task, status)
        });
        self.inspecting
            .insert(uid.clone(), (task.id(), record.clone(), begun));
    }

    async fn finish(&mut self, done: Result<(Id, Inspection), JoinError>) {
        let (id, uid, status) = match done {
            Ok((id, (uid, status))) => (id, uid, status),
            Err(error) => {
                let id = error.id();
                let entry = self.inspecting.iter().find(|(_, entry)| entry.0 == id);
                let Some(uid) = entry.map(|(uid, _)| uid.clone()) else {
                    return;
                };
                (id, uid, Err(error.to_string()))
            }
        };
        // An abandoned read is of no interest, even when the pod is back.
        if self.inspecting.get(&uid).is_none_or(|entry| entry.0 != id) {
            return;
        }
        let Some((_, record, begun)) = self.inspecting.remove(&uid) else {
            return;
        };
        let cache = &self.pleg.cache;
        let status = match status {
            Ok(status) => status,
            Err(reason) => {
                debug!(pod_uid = %uid, %reason, "cannot read the status of a pod");
                // The pod still differs from `inspected`: the next list reads it again.
                cache.set(&uid, Err(CacheError(Arc::from(reason))), begun);
                return;
            }
        };
        cache.set(&uid, Ok(Arc::new(status)), begun);
        let changes = self
            .inspected
            .get(&uid)
            .map(|old| old.changes(&record))
            .unwrap_or_else(|| PodRecord::default().changes(&record));
        self.inspected.insert(uid.clone(), record);
        self.emit(PodLifecycleEvent { uid, changes }).await;
    }

    async fn emit(&self, event: PodLifecycleEvent) {
        // Fails only once the sync loop is gone, and then nobody needs to know.
        if self.events.send(event).await.is_err() {
            debug!("a pod lifecycle event came after the sync loop ended");
        }
    }
}
