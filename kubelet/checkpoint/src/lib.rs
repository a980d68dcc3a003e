//! Start without the API server: the checkpoint keeps this node's API pods, and the objects that
//! they need, on disk. The pods start again after a reboot even if the API server is unreachable.
//!
//! While the API server answers, its objects take precedence, and the checkpoint is only written.
//! Secrets and tokens are written only with a key, and encrypted.

#![forbid(unsafe_code)]

pub mod entry;
mod fingerprint;
pub mod objects;
mod references;
pub mod sealed;
mod state;
pub mod store;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kubelet_host::repeatable::blocking;
use kubelet_pod_spec::{
    identity::{self, PodUid},
    json, known_status,
};
use parking_lot::Mutex;
use retry_delay::RetryDelay;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use self::{
    entry::{Entry, EntryKind},
    sealed::{KeyError, SealingKey},
    state::{CheckpointState, FetchedObject},
    store::{Store, StoreError},
};

/// First and longest delay before a failed write or removal is retried.
const RETRY_BASE: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_secs(480);

/// Location of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Its directory (`--bootstrap-checkpoint-path`).
    pub dir: PathBuf,
    /// File of the key that encrypts secrets (`--bootstrap-checkpoint-key`); without it, secrets
    /// are not kept.
    pub key_file: Option<PathBuf>,
}

/// Why a checkpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The key is unusable.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The directory is unusable.
    #[error("--bootstrap-checkpoint-path: {0}")]
    Store(#[from] StoreError),
}

/// The checkpoint of this node's pods.
pub struct Checkpoint {
    store: Arc<Store>,
    /// The node object from an earlier run.
    node: Option<Arc<Node>>,
    /// Why there is no node object; a message for the log.
    no_node: String,
    state: Mutex<CheckpointState>,
    /// Signals pending writes or removals.
    wake: Notify,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Reads the checkpoint of an earlier run. An unusable file is logged and its object is
    /// skipped.
    ///
    /// # Errors
    /// The directory or the key is unusable.
    pub async fn open(
        options: &CheckpointOptions,
        node_name: &str,
    ) -> Result<Self, CheckpointError> {
        let (options, node_name) = (options.clone(), node_name.to_owned());
        let dir = options.dir.clone();
        let opened = blocking(move || Self::open_blocking(&options, &node_name)).await;
        opened.map_err(|error| StoreError::Io {
            path: dir,
            source: io::Error::other(error),
        })?
    }

    fn open_blocking(
        options: &CheckpointOptions,
        node_name: &str,
    ) -> Result<Self, CheckpointError> {
        let key = options.key_file.as_deref().map(SealingKey::read);
        let store = Store::open(&options.dir, key.transpose()?)?;
        let mut state = CheckpointState::new(store.keeps(EntryKind::Secret));
        for entry in store.entries() {
            let names = match entry.kind() {
                EntryKind::Claim => names_of(&store, &entry, references::of_claim),
                EntryKind::Volume => names_of(&store, &entry, references::of_volume),
                _ => BTreeSet::new(),
            };
            if entry.kind() == EntryKind::Pod {
                match read_pod(&store, &entry) {
                    Ok(pod) => state.found_pod(entry.clone(), pod),
                    Err(error) => {
                        error!(pod = %entry, %error, "cannot restore a pod");
                    }
                }
            }
            state.found(entry, names);
        }
        state.settle();
        let (node, no_node) = match read_node(&store, node_name) {
            Ok(node) => (Some(Arc::new(node)), String::new()),
            Err(why) => (None, why),
        };
        Ok(Self {
            store: Arc::new(store),
            node,
            no_node,
            state: Mutex::new(state),
            wake: Notify::new(),
        })
    }

    /// The node object from an earlier run, reduced to the fields that matter to pods.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.node.clone()
    }

    /// The API pods of an earlier run, including those that were terminating or had ended. Of the
    /// others, a pod that requires node labels is left out while the labels are unknown, because
    /// admission would reject it for good.
    pub fn restored(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.state.lock().pods();
        pods.retain(|pod| {
            let is_over = known_status::has_ended(pod) || pod.metadata.deletion_timestamp.is_some();
            if self.node.is_some() || is_over || !fingerprint::depends_on_node_labels(pod) {
                return true;
            }
            error!(
                pod = identity::full_name(pod), pod_uid = %PodUid::of(pod), error = self.no_node,
                "a pod waits for the API server: it depends on the node's labels, which are unknown"
            );
            false
        });
        pods
    }

    /// The last statuses of the kept pods that ran or ended, by UID. The API server may not know
    /// them.
    pub fn last_statuses(&self) -> BTreeMap<PodUid, PodStatus> {
        let pods = self.state.lock().pods();
        let statuses = pods.iter().filter_map(|pod| {
            let status = pod.status.as_ref()?;
            known_status::has_run(status).then(|| (PodUid::of(pod), status.clone()))
        });
        statuses.collect()
    }

    /// Whether the API server has listed the pods since this kubelet started.
    pub fn has_pod_list(&self) -> bool {
        self.state.lock().has_pod_list()
    }

    /// Records the complete list of this node's pods in the API server.
    pub fn set_pods(&self, pods: &[Arc<Pod>]) {
        self.change(|state| state.set_pods(pods));
    }

    /// Records a pod that was added or modified in the API server.
    pub fn put_pod(&self, pod: &Arc<Pod>) {
        self.change(|state| state.put_pod(pod));
    }

    /// Records that a pod was deleted in the API server.
    pub fn remove_pod(&self, pod: &Pod) {
        self.change(|state| state.remove_pod(pod));
    }

    fn change(&self, change: impl FnOnce(&mut CheckpointState)) {
        change(&mut self.state.lock());
        self.wake.notify_one();
    }

    /// Whether entries of this kind are kept.
    fn keeps(&self, kind: EntryKind) -> bool {
        self.store.keeps(kind)
    }

    /// Keeps an object from the API server if a pod needs it.
    fn keep<K: Serialize>(
        &self,
        entry: Entry,
        version: Option<String>,
        object: &K,
        names: BTreeSet<Entry>,
    ) {
        if !self.keeps(entry.kind()) || !self.state.lock().wants(&entry, version.as_deref()) {
            return;
        }
        match serde_json::to_vec(object) {
            Ok(text) => self.change(|state| {
                state.keep(FetchedObject {
                    entry,
                    version,
                    text,
                    names,
                });
            }),
            Err(error) => warn!(object = %entry, %error, "cannot add an object to the checkpoint"),
        }
    }

    /// Removes an object that does not exist in the API server.
    fn forget(&self, entry: &Entry) {
        self.change(|state| {
            state.forget(entry);
            state.settle();
        });
    }

    /// Reads a kept object; `None` if it is not kept.
    ///
    /// # Errors
    /// The kept object is unusable.
    async fn read<K: DeserializeOwned + Send + 'static>(
        &self,
        entry: &Entry,
    ) -> Result<Option<K>, StoreError> {
        // A pending write is newer than the file.
        if let Some(due) = self.state.lock().due(entry) {
            return Ok(due.as_ref().and_then(|text| json::from_slice(text).ok()));
        }
        let path = entry.path(self.store.dir());
        let (store, entry) = (Arc::clone(&self.store), entry.clone());
        let read = blocking(move || store.read_object(&entry)).await;
        read.map_err(|error| StoreError::Io {
            path,
            source: io::Error::other(error),
        })?
    }

    /// Writes and removes files until `cancel`, and once more after it. Failures are retried with a
    /// back-off.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut failing = BTreeSet::new();
        let mut delay = RetryDelay::new(RETRY_BASE, RETRY_MAX);
        let mut retry_at = None;
        loop {
            self.do_due(&mut failing).await;
            if failing.is_empty() {
                delay.reset();
                retry_at = None;
            } else if retry_at.is_none() {
                retry_at = Some(Instant::now() + delay.after_failure());
            }
            let retry = async {
                match retry_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                () = retry => {
                    self.state.lock().retry();
                    retry_at = None;
                }
                () = self.wake.notified() => {}
            }
        }
        self.state.lock().retry();
        self.do_due(&mut failing).await;
    }

    /// Executes pending writes and removals. `failing` has the entries whose last attempt failed.
    async fn do_due(&self, failing: &mut BTreeSet<Entry>) {
        let due = Arc::new(self.state.lock().take_due());
        if due.is_empty() {
            return;
        }
        let (store, doing) = (Arc::clone(&self.store), Arc::clone(&due));
        let done = blocking(move || {
            let each = doing.iter().map(|(entry, text)| match text {
                Some(text) => store.write(entry, text),
                None => store.remove(entry),
            });
            each.collect::<Vec<_>>()
        });
        let done = done.await.unwrap_or_else(|error| {
            let error = io::Error::other(error).to_string();
            let failed = |_| {
                Err(StoreError::Io {
                    path: self.store.dir().to_owned(),
                    source: io::Error::other(error.clone()),
                })
            };
            due.keys().map(failed).collect()
        });
        for ((entry, text), done) in due.iter().zip(done) {
            match done {
                Ok(()) => {
                    failing.remove(entry);
                }
                Err(error) => {
                    self.state.lock().failed(entry, text);
                    if failing.insert(entry.clone()) {
                        warn!(
                            %error,
                            "cannot update the checkpoint; some pods will not start without the \
                             API server"
                        );
                    }
                }
            }
        }
    }

    /// Records started containers and ended pods from `status` until `cancel`; `changes` signals
    /// that a status has changed.
    pub async fn follow_statuses(
        &self,
        mut changes: watch::Receiver<()>,
        status: impl Fn(&PodUid) -> Option<Arc<PodStatus>>,
        cancel: CancellationToken,
    ) {
        loop {
            changes.mark_unchanged();
            self.change(|state| state.note(&status));
            let changed = cancel.run_until_cancelled(changes.changed());
            if !matches!(changed.await, Some(Ok(()))) {
                return;
            }
        }
    }

    /// Keeps the current node object until `cancel`.
    pub async fn follow_node(
        &self,
        mut node: watch::Receiver<Option<Arc<Node>>>,
        cancel: CancellationToken,
    ) {
        loop {
            let now = node.borrow_and_update().clone();
            if let Some(now) = now {
                self.keep_node(&fingerprint::without_unneeded_fields(&now));
            }
            let changed = cancel.run_until_cancelled(node.changed());
            if !matches!(changed.await, Some(Ok(()))) {
                return;
            }
        }
    }

    fn keep_node(&self, node: &Node) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Some(entry) = Entry::new(EntryKind::Node, "", name) else {
            return;
        };
        match serde_json::to_vec(node) {
            Ok(text) => {
                let version = Some(format!("{:x}", Sha256::digest(text)));
                self.keep(entry, version, node, BTreeSet::new());
            }
            Err(error) => debug!(%error, "cannot add the node to the checkpoint"),
        }
    }
}

/// The entries that an object refers to; none if its file is unusable.
fn names_of<K: DeserializeOwned>(
    store: &Store,
    entry: &Entry,
    names: fn(&K) -> BTreeSet<Entry>,
) -> BTreeSet<Entry> {
    match store.read_object(entry) {
        Ok(object) => object.as_ref().map(names).unwrap_or_default(),
        Err(error) => {
            error!(object = %entry, %error, "cannot restore an object");
            BTreeSet::new()
        }
    }
}

fn read_pod(store: &Store, entry: &Entry) -> Result<Pod, StoreError> {
    let pod: Option<Pod> = store.read_object(entry)?;
    let pod = pod.filter(|pod| {
        let is_it = Entry::of_pod(pod).as_ref() == Some(entry);
        is_it && PodUid::parse(PodUid::of(pod).as_str()).is_some()
    });
    let mut pod = pod.ok_or_else(|| StoreError::Corrupt {
        path: entry.path(store.dir()),
        why: "it does not contain this pod".to_owned(),
    })?;
    // This is not a version of the API server's: its status may differ there.
    pod.metadata.resource_version = None;
    Ok(pod)
}

/// # Errors
/// Why the node object is unknown; a message for the log.
fn read_node(store: &Store, name: &str) -> Result<Node, String> {
    let dir = store.dir().join(EntryKind::Node.directory());
    let unknown = || format!("{} has no Node object for this node", dir.display());
    let entry = Entry::new(EntryKind::Node, "", name).ok_or_else(unknown)?;
    match store.read_by(&entry, json::node) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(unknown()),
        Err(error) => {
            error!(%error, "cannot restore the Node object");
            Err(error.to_string())
        }
    }
}
