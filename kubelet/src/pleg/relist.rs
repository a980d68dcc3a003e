//! Lists the runtime, reads single pods, and processes the results.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kubelet_cri_client::CriError;
use kubelet_pod_spec::identity::PodUid;
use tokio::{
    sync::{Semaphore, mpsc},
    task::{Id, JoinError, JoinSet},
    time::Instant,
};
use tracing::{debug, info, warn};

use super::{
    CacheError, EventHint, Listing, Pleg, PodLifecycleEvent, PodRecord, Records,
    reading::{ReadError, Reading, list_pod, read_details},
    record,
    reported_changes::Expectations,
};

/// Between the starts of two lists.
const RELIST_PERIOD: Duration = Duration::from_secs(1);
/// The same with events. Upstream's is 300 s; a list is cheap, and if the runtime drops an event
/// (containerd may), the delay is short.
const SLOW_RELIST_PERIOD: Duration = Duration::from_secs(30);
/// The least time between the starts of two lists if the second was requested.
const REQUESTED_RELIST_PERIOD: Duration = Duration::from_millis(100);
/// Events of one pod within this time are handled together.
const EVENT_QUIET: Duration = Duration::from_millis(10);
/// How long after a list an event of the same change may arrive.
const EVENT_DELAY: Duration = Duration::from_secs(2);
/// A reading that starts this long after a change certainly starts after it.
const TICK: Duration = Duration::from_millis(1);
/// How many pods' details are read concurrently.
const INSPECTIONS: usize = 8;
/// The result of a task of the generator.
enum Done {
    /// The complete list, and when it was started.
    Listed(Instant, Result<Records, CriError>),
    Read(Reading),
}

/// A reading in progress.
struct InFlight {
    task: Id,
    begun: Instant,
    /// Whether it lists the pod itself, instead of reading the details of a list.
    lists: bool,
}

/// State that only the generator's task uses.
pub(super) struct Relisting<'a> {
    pleg: &'a Pleg,
    events: mpsc::Sender<PodLifecycleEvent>,
    /// The record of each pod when its details were last read, and when that was.
    inspected: BTreeMap<PodUid, (Arc<PodRecord>, Instant)>,
    in_flight: BTreeMap<PodUid, InFlight>,
    /// Pods to read, and the earliest time for it.
    pending: BTreeMap<PodUid, Instant>,
    /// Pods whose last reading failed.
    unread: BTreeSet<PodUid>,
    /// Changes that events reported and lists have yet to show.
    expected: Expectations,
    /// Pods whose change a list showed without an event so far, and until when an event may arrive.
    unannounced: Option<(BTreeSet<PodUid>, Instant)>,
    tasks: JoinSet<Done>,
    permits: Arc<Semaphore>,
    /// The list in progress.
    listing: Option<Id>,
    started: Instant,
    /// The start of the last list, and whether another one was requested.
    begun: Option<Instant>,
    wanted: bool,
    /// The start of the last list that succeeded.
    last_listed: Option<Instant>,
    /// Since when events have reported changes.
    evented_since: Option<Instant>,
    failing: bool,
}

impl<'a> Relisting<'a> {
    pub(super) fn new(pleg: &'a Pleg, events: mpsc::Sender<PodLifecycleEvent>) -> Self {
        Self {
            pleg,
            events,
            inspected: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            pending: BTreeMap::new(),
            unread: BTreeSet::new(),
            expected: Expectations::default(),
            unannounced: None,
            tasks: JoinSet::new(),
            permits: Arc::new(Semaphore::new(INSPECTIONS)),
            listing: None,
            started: Instant::now(),
            begun: None,
            wanted: false,
            last_listed: None,
            evented_since: None,
            failing: false,
        }
    }

    pub(super) async fn run(mut self, mut hints: mpsc::Receiver<EventHint>) {
        loop {
            let due = self.due();
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next_with_id() => self.finish(done).await,
                () = self.pleg.wake.notified() => self.take_requests(),
                Some(hint) = hints.recv() => self.take_hint(hint),
                () = sleep_until(due) => self.begin_what_is_due(),
            }
        }
    }

    // === when ===

    fn next_list(&self) -> Option<Instant> {
        if self.listing.is_some() {
            return None;
        }
        let period = if self.wanted {
            REQUESTED_RELIST_PERIOD
        } else if self.pleg.is_evented() && !self.failing && self.unread.is_empty() {
            SLOW_RELIST_PERIOD
        } else {
            RELIST_PERIOD
        };
        Some(self.begun.map_or(self.started, |begun| begun + period))
    }

    /// When the next operation is due if nothing happens.
    fn due(&self) -> Option<Instant> {
        let pending = self.pending.iter();
        let readable = pending.filter(|(uid, _)| !self.in_flight.contains_key(*uid));
        readable
            .map(|(_, due)| *due)
            .chain(self.next_list())
            .chain(self.unannounced.as_ref().map(|(_, until)| *until))
            .min()
    }

    fn take_requests(&mut self) {
        let requests = std::mem::take(&mut *self.pleg.requests.lock());
        self.wanted |= requests.relist;
        for (uid, min) in requests.pods {
            if self.is_foreign(&uid) {
                self.wanted |= !self.pleg.cache.is_newer_than(&uid, min);
                continue;
            }
            let under_way = self.in_flight.get(&uid);
            if under_way.is_none_or(|reading| reading.begun <= min)
                && !self.pleg.cache.is_newer_than(&uid, min)
            {
                // Later than the change, even if the clock has not advanced.
                self.read_from(uid, min + TICK);
            }
        }
    }

    fn take_hint(&mut self, hint: EventHint) {
        match hint {
            EventHint::Something => {
                self.wanted = true;
                self.unannounced = None;
                self.evented_since = self.pleg.is_evented().then(Instant::now);
            }
            EventHint::Pod(uid, change) => {
                self.expected.add(&uid, change);
                if let Some((pods, _)) = &mut self.unannounced {
                    pods.remove(&uid);
                }
                if self.is_foreign(&uid) {
                    self.wanted = true;
                } else {
                    self.read_from(uid, Instant::now() + EVENT_QUIET);
                }
            }
        }
    }

    /// Schedules a reading of the pod at `due`, or earlier if one is scheduled.
    fn read_from(&mut self, uid: PodUid, due: Instant) {
        let at = self.pending.entry(uid).or_insert(due);
        *at = due.min(*at);
    }

    fn is_foreign(&self, uid: &PodUid) -> bool {
        let known = self.inspected.get(uid);
        known.is_some_and(|(record, _)| record.is_foreign)
    }

    fn begin_what_is_due(&mut self) {
        let now = Instant::now();
        let due: Vec<PodUid> = self
            .pending
            .iter()
            .filter(|(uid, due)| **due <= now && !self.in_flight.contains_key(*uid))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in due {
            self.pending.remove(&uid);
            self.read(&uid, None, now);
        }
        if self.next_list().is_some_and(|next| next <= now) {
            self.list(now);
        }
        if self
            .unannounced
            .as_ref()
            .is_some_and(|(_, until)| *until <= now)
            && let Some((pods, _)) = self.unannounced.take()
            && !pods.is_empty()
            && self.pleg.is_evented()
        {
            debug!(?pods, "no event announced these pod changes");
            self.pleg.deaf.notify_one();
        }
    }

    // === what ===

    fn list(&mut self, now: Instant) {
        self.wanted = false;
        if let Some(last) = self.begun.replace(now) {
            let interval = self.pleg.metrics.intervals.of([]);
            interval.observe_duration(now - last);
        }
        let cri = self.pleg.cri.clone();
        let task = self.tasks.spawn(async move {
            let begun = Instant::now();
            let lists = tokio::try_join!(cri.list_pod_sandboxes(), cri.list_containers());
            let records = lists.map(|(sandboxes, containers)| record::group(sandboxes, containers));
            Done::Listed(begun, records)
        });
        self.listing = Some(task.id());
    }

    /// Reads the details of a pod as `listed`; lists the pod itself for `None`.
    fn read(&mut self, uid: &PodUid, listed: Option<Arc<PodRecord>>, begun: Instant) {
        self.pleg.cache.begin_inspection(uid);
        let lists = listed.is_none();
        let cri = self.pleg.cri.clone();
        let oom_watcher = Arc::clone(&self.pleg.oom_watcher);
        let permits = Arc::clone(&self.permits);
        let known = self.pleg.cache.get(uid).unwrap_or_default();
        let pod = uid.clone();
        let task = self.tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let (at, record) = match listed {
                Some(record) => (begun, Ok(record)),
                None => (Instant::now(), list_pod(&cri, &pod).await),
            };
            let result = match record {
                Ok(record) => read_details(&cri, &oom_watcher, record, &known).await,
                Err(error) => Err(ReadError::List(error)),
            };
            Done::Read(Reading {
                uid: pod,
                at,
                result,
            })
        });
        let reading = InFlight {
            task: task.id(),
            begun,
            lists,
        };
        self.in_flight.insert(uid.clone(), reading);
    }

    async fn finish(&mut self, done: Result<(Id, Done), JoinError>) {
        match done {
            Ok((_, Done::Listed(begun, result))) => {
                self.listing = None;
                let relists = self.pleg.metrics.relists.of([]);
                relists.observe_duration(begun.elapsed());
                self.take_list(begun, result).await;
            }
            Ok((task, Done::Read(reading))) => {
                // Ignore an abandoned reading, even if the pod is back.
                let current = self.in_flight.get(&reading.uid);
                if current.is_some_and(|current| current.task == task) {
                    self.in_flight.remove(&reading.uid);
                    self.take_reading(reading).await;
                }
            }
            Err(error) if self.listing == Some(error.id()) => {
                self.listing = None;
                warn!(%error, "the task that lists the runtime's pods failed");
            }
            Err(error) => {
                let mut readings = self.in_flight.iter();
                let reading = readings.find(|(_, reading)| reading.task == error.id());
                let Some((uid, begun)) = reading.map(|(uid, read)| (uid.clone(), read.begun))
                else {
                    return;
                };
                self.in_flight.remove(&uid);
                let reading = Reading {
                    uid,
                    at: begun,
                    result: Err(ReadError::Details(error.to_string())),
                };
                self.take_reading(reading).await;
            }
        }
    }

    async fn take_list(&mut self, begun: Instant, result: Result<Records, CriError>) {
        let listed = match result {
            Ok(listed) => listed,
            Err(error) => {
                // Once, not every second.
                if !self.failing {
                    warn!(%error, "cannot list the runtime's pods; retrying");
                }
                self.failing = true;
                return;
            }
        };
        if self.failing {
            info!("the runtime's pods are listed again");
            self.failing = false;
        }
        let mut unannounced = BTreeSet::new();
        for (uid, record) in &listed {
            let known = self.inspected.get(uid);
            let is_read = known.is_some_and(|(known, at)| known == record || *at > begun);
            // A record without changes may still have unread details.
            if is_read && !self.unread.contains(uid) {
                continue;
            }
            if self.in_flight.contains_key(uid) {
                // The reading in progress may be older than the list.
                self.read_from(uid.clone(), begun + TICK);
            } else {
                if !self.pending.contains_key(uid) && !self.unread.contains(uid) {
                    unannounced.insert(uid.clone());
                }
                self.read(uid, Some(Arc::clone(record)), begun);
            }
        }
        let gone = self.gone(&listed, begun);
        let mut records = listed;
        for (uid, (record, _)) in self.inspected.iter().filter(|(_, (_, at))| *at > begun) {
            // Read after the list started, and therefore newer.
            if record.is_empty() {
                records.remove(uid);
            } else {
                records.insert(uid.clone(), Arc::clone(record));
            }
        }
        self.pleg.listing.store(Arc::new(Listing {
            at: Some(begun),
            records,
        }));
        for uid in &gone {
            self.unread.remove(uid);
            // A reading that began before the list would bring the pod back.
            if let Some(reading) = self.in_flight.remove(uid)
                && (reading.lists || self.expected.are_there(uid))
            {
                self.read_from(uid.clone(), begun + TICK);
            }
            self.pleg.cache.remove(uid);
        }
        self.pleg.cache.listed(begun);
        *self.pleg.relisted.lock() = Some(Instant::now());
        // Events are expected only for changes between two lists while the stream was open.
        let covered = self.evented_since.is_some_and(|since| {
            let last = self.last_listed;
            last.is_some_and(|last| last > since)
        });
        if covered && self.unannounced.is_none() && !unannounced.is_empty() {
            self.unannounced = Some((unannounced, Instant::now() + EVENT_DELAY));
        }
        self.last_listed = Some(begun);
        for uid in gone {
            if let Some((old, _)) = self.inspected.remove(&uid) {
                self.emit(uid, &old, &PodRecord::default()).await;
            }
        }
    }

    /// Pods that were known or being read, and are missing in a list that was started later.
    fn gone(&self, listed: &Records, begun: Instant) -> Vec<PodUid> {
        let inspected = self.inspected.iter().filter(|(_, (_, at))| *at <= begun);
        let in_flight = self
            .in_flight
            .iter()
            .filter(|(_, read)| read.begun <= begun);
        let known: BTreeSet<&PodUid> = inspected
            .map(|(uid, _)| uid)
            .chain(in_flight.map(|(uid, _)| uid))
            .chain(&self.unread)
            .collect();
        let read_since = |uid: &PodUid| {
            let inspected = self.inspected.get(uid);
            inspected.is_some_and(|(_, at)| *at > begun)
        };
        let gone = known.into_iter();
        gone.filter(|uid| !listed.contains_key(*uid) && !read_since(uid))
            .cloned()
            .collect()
    }

    async fn take_reading(&mut self, reading: Reading) {
        let Reading { uid, at, result } = reading;
        let readings = self.pleg.metrics.readings.of([]);
        readings.observe_duration(at.elapsed());
        let cache = &self.pleg.cache;
        let mut changed = self.pending.contains_key(&uid);
        let (record, status) = match result {
            Ok(read) => read,
            Err(ReadError::List(error)) => {
                // As after a failed complete list, no one is notified: it is retried.
                debug!(pod_uid = %uid, %error, "cannot list the sandboxes and containers of a pod");
                self.unread.insert(uid.clone());
                self.pending.insert(uid, Instant::now() + RELIST_PERIOD);
                return;
            }
            Err(ReadError::Details(reason)) => {
                debug!(pod_uid = %uid, %reason, "cannot read the status of a pod");
                cache.set(&uid, Err(CacheError(Arc::from(reason))), at, changed);
                // The next list reads it again.
                self.unread.insert(uid);
                return;
            }
        };
        self.unread.remove(&uid);
        // The change of an event has already happened; a list may show it later.
        if !changed && self.expected.are_missed_by(&uid, &record) {
            self.pending
                .insert(uid.clone(), Instant::now() + RELIST_PERIOD);
            changed = true;
        }
        cache.set(&uid, Ok(Arc::new(status)), at, changed);
        self.note(&uid, &record);
        let old = self
            .inspected
            .insert(uid.clone(), (Arc::clone(&record), at));
        let old = old.map(|(old, _)| old).unwrap_or_default();
        self.emit(uid, &old, &record).await;
    }

    /// Updates one pod in the shared listing after reading it.
    fn note(&self, uid: &PodUid, record: &Arc<PodRecord>) {
        let listing = self.pleg.listing.load();
        let known = listing.records.get(uid);
        if known == Some(record) || (known.is_none() && record.is_empty()) {
            return;
        }
        let mut records = listing.records.clone();
        if record.is_empty() {
            records.remove(uid);
        } else {
            records.insert(uid.clone(), Arc::clone(record));
        }
        let at = listing.at;
        self.pleg.listing.store(Arc::new(Listing { at, records }));
    }

    async fn emit(&self, uid: PodUid, old: &PodRecord, new: &PodRecord) {
        let changes = old.changes(new);
        // Fails only once the sync loop is gone, which then needs no events.
        if !changes.is_empty()
            && self
                .events
                .send(PodLifecycleEvent { uid, changes })
                .await
                .is_err()
        {
            debug!("dropped a pod lifecycle event: the sync loop has ended");
        }
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
