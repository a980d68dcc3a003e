//! The mux: each source sends its complete set of pods, and the kubelet receives the changes.

use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_host::clock;
use kubelet_pod_spec::identity::{
    self, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, PodUid, full_name,
};
use tokio::sync::{Mutex, mpsc};
use tracing::warn;

use super::update::{PodOperation, PodUpdate, Source};

/// Capacity of the channel of updates; sources wait while it is full.
const UPDATES: usize = 50;

/// Annotations that the kubelet sets itself; ignored in comparisons.
const LOCAL_ANNOTATIONS: [&str; 3] = [CONFIG_SOURCE, CONFIG_SEEN, CONFIG_MIRROR];

/// Merges the sources' pods into one ordered stream of changes.
///
/// Invariant: the pods that were sent and not removed again are those of the sources' last sets.
#[derive(Clone, Debug)]
pub struct PodConfig {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    updates: mpsc::Sender<PodUpdate>,
    /// Locked while a set is merged and its updates are sent, to keep their order.
    sources: Mutex<HashMap<Source, BTreeMap<PodUid, Arc<Pod>>>>,
    seen: parking_lot::Mutex<SeenSources>,
    all_seen: AtomicBool,
}

#[derive(Debug, Default)]
struct SeenSources {
    registered: HashSet<Source>,
    complete: HashSet<Source>,
}

/// The handle through which one source sends its pods.
#[derive(Clone, Debug)]
pub struct SourceHandle {
    source: Source,
    shared: Arc<Shared>,
}

/// The current set of pods of a source.
#[derive(Clone, Debug, Default)]
pub struct PodSet {
    /// The pods.
    pub pods: Vec<Arc<Pod>>,
    /// Whether these are all pods. False if a source has never been able to read some of its pods.
    pub complete: bool,
}

/// The receiver of the stream is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of pod updates is gone")]
pub struct Closed;

impl PodConfig {
    /// A mux without sources, and its stream of changes.
    pub fn new() -> (Self, mpsc::Receiver<PodUpdate>) {
        let (updates, receiver) = mpsc::channel(UPDATES);
        let shared = Arc::new(Shared {
            updates,
            sources: Mutex::default(),
            seen: parking_lot::Mutex::default(),
            all_seen: AtomicBool::new(false),
        });
        (Self { shared }, receiver)
    }

    /// Adds a source. All sources are added before the kubelet starts.
    pub fn source(&self, source: Source) -> SourceHandle {
        self.shared.seen.lock().registered.insert(source);
        SourceHandle {
            source,
            shared: self.shared.clone(),
        }
    }

    /// Whether every source has sent its complete set once, and the receiver has taken all
    /// resulting updates. Only then is a running pod without a source an orphan.
    ///
    /// Stays true once it is true. When the receiving task calls it, the updates are those that
    /// this task has taken.
    pub fn seen_all_sources(&self) -> bool {
        let shared = &self.shared;
        if shared.all_seen.load(Ordering::Acquire) {
            return true;
        }
        let complete = {
            let seen = shared.seen.lock();
            seen.registered.is_subset(&seen.complete)
        };
        let drained = shared.updates.capacity() == shared.updates.max_capacity();
        if complete && drained {
            shared.all_seen.store(true, Ordering::Release);
        }
        complete && drained
    }
}

impl SourceHandle {
    /// Replaces the source's previous set, and sends the differences.
    ///
    /// # Errors
    /// The receiver is gone: the source can stop.
    pub async fn set(&self, set: PodSet) -> Result<(), Closed> {
        let mut sources = self.shared.sources.lock().await;
        let pods = sources.entry(self.source).or_default();
        let changes = merge(pods, set.pods, self.source);
        let first_complete =
            set.complete && !self.shared.seen.lock().complete.contains(&self.source);
        // The receiver is notified of a source's first complete set even if it is empty.
        let say_nothing = changes.iter().all(|(_, pods)| pods.is_empty());
        if first_complete && say_nothing {
            self.send(PodOperation::Add, Vec::new()).await?;
        }
        self.send_all(changes).await?;
        if first_complete {
            self.shared.seen.lock().complete.insert(self.source);
        }
        Ok(())
    }

    /// Adds pods that the source had earlier, before it has confirmed them. The source is not
    /// complete then: its next set replaces them.
    ///
    /// # Errors
    /// The receiver is gone: the source can stop.
    pub async fn restore(&self, told: Vec<Arc<Pod>>) -> Result<(), Closed> {
        let mut sources = self.shared.sources.lock().await;
        let pods = sources.entry(self.source).or_default();
        let mut restored = Differences::default();
        for pod in told {
            if let Entry::Vacant(place) = pods.entry(PodUid::of(&pod)) {
                place.insert(restored.take(None, pod, self.source));
            }
        }
        if restored.added.is_empty() {
            return Ok(());
        }
        self.send(PodOperation::Restore, restored.added).await
    }

    /// Removes one pod and adds or updates another one in the source's set, and sends the
    /// differences.
    ///
    /// # Errors
    /// The receiver is gone: the source can stop.
    pub async fn change(&self, gone: Option<&PodUid>, put: Option<Arc<Pod>>) -> Result<(), Closed> {
        let mut sources = self.shared.sources.lock().await;
        let pods = sources.entry(self.source).or_default();
        let mut differences = Differences::default();
        differences
            .removed
            .extend(gone.and_then(|uid| pods.remove(uid)));
        if let Some(pod) = put {
            let uid = PodUid::of(&pod);
            let before = pods.remove(&uid);
            pods.insert(uid, differences.take(before, pod, self.source));
        }
        self.send_all(differences.in_order()).await
    }

    async fn send_all(&self, changes: Changes) -> Result<(), Closed> {
        for (operation, pods) in changes {
            if !pods.is_empty() {
                self.send(operation, pods).await?;
            }
        }
        Ok(())
    }

    async fn send(&self, operation: PodOperation, pods: Vec<Arc<Pod>>) -> Result<(), Closed> {
        let update = PodUpdate {
            pods,
            operation,
            source: self.source,
        };
        self.shared.updates.send(update).await.map_err(|_| Closed)
    }
}

type Changes = [(PodOperation, Vec<Arc<Pod>>); 5];

/// The differences between two sets of a source.
#[derive(Default)]
struct Differences {
    removed: Vec<Arc<Pod>>,
    added: Vec<Arc<Pod>>,
    updated: Vec<Arc<Pod>>,
    deleted: Vec<Arc<Pod>>,
    reconciled: Vec<Arc<Pod>>,
}

impl Differences {
    /// Records the change of a pod, and returns the pod to store.
    fn take(&mut self, before: Option<Arc<Pod>>, pod: Arc<Pod>, source: Source) -> Arc<Pod> {
        let Some(before) = before else {
            let pod = annotated(pod, source, &clock::now().to_string());
            self.added.push(Arc::clone(&pod));
            return pod;
        };
        let Some(operation) = change(&before, &pod) else {
            return before;
        };
        let seen = identity::annotation(&before, CONFIG_SEEN).unwrap_or_default();
        let pod = annotated(pod, source, seen);
        let pods = match operation {
            PodOperation::Delete => &mut self.deleted,
            PodOperation::Reconcile => &mut self.reconciled,
            _ => &mut self.updated,
        };
        pods.push(Arc::clone(&pod));
        pod
    }

    /// In the order in which they must be sent.
    fn in_order(self) -> Changes {
        [
            (PodOperation::Remove, self.removed),
            (PodOperation::Add, self.added),
            (PodOperation::Update, self.updated),
            (PodOperation::Delete, self.deleted),
            (PodOperation::Reconcile, self.reconciled),
        ]
    }
}

/// Replaces `known` with `told`, and returns the differences in the order in which they must be
/// sent.
fn merge(known: &mut BTreeMap<PodUid, Arc<Pod>>, told: Vec<Arc<Pod>>, source: Source) -> Changes {
    let mut differences = Differences::default();
    let mut now = BTreeMap::new();
    let mut names = HashSet::new();
    for pod in told {
        if !names.insert(full_name(&pod)) {
            warn!(
                pod = %full_name(&pod),
                pod_uid = %PodUid::of(&pod),
                %source,
                "ignoring a pod: its source has another pod of the same name"
            );
            continue;
        }
        let uid = PodUid::of(&pod);
        let before = known.remove(&uid);
        now.insert(uid, differences.take(before, pod, source));
    }
    differences.removed = std::mem::replace(known, now).into_values().collect();
    differences.in_order()
}

/// The change of a pod between two sets.
fn change(before: &Pod, after: &Pod) -> Option<PodOperation> {
    let (old, new) = (&before.metadata, &after.metadata);
    let same = before.spec == after.spec
        && old.labels == new.labels
        && old.deletion_timestamp == new.deletion_timestamp
        && old.deletion_grace_period_seconds == new.deletion_grace_period_seconds
        && own_annotations(before).eq(own_annotations(after));
    if !same && new.deletion_timestamp.is_some() {
        Some(PodOperation::Delete)
    } else if !same {
        Some(PodOperation::Update)
    } else if before.status != after.status || is_first_told(before, after) {
        Some(PodOperation::Reconcile)
    } else {
        None
    }
}

/// Whether the API server now sends a pod that was restored. Only its pods have a resource version.
fn is_first_told(before: &Pod, after: &Pod) -> bool {
    before.metadata.resource_version.is_none() && after.metadata.resource_version.is_some()
}

/// A pod's annotations without the kubelet's own.
fn own_annotations(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    pod.metadata
        .annotations
        .iter()
        .flatten()
        .filter(|(key, _)| !LOCAL_ANNOTATIONS.contains(&key.as_str()))
}

/// The pod with annotations of its source and of when it was first seen.
fn annotated(mut pod: Arc<Pod>, source: Source, seen: &str) -> Arc<Pod> {
    let annotations = Arc::make_mut(&mut pod)
        .metadata
        .annotations
        .get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.to_owned(), source.as_str().to_owned());
    annotations.insert(CONFIG_SEEN.to_owned(), seen.to_owned());
    pod
}

#[cfg(test)]
mod tests;
