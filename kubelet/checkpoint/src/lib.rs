//! The disconnected start: this node's pods of the API server, and what they need to start,
//! on disk; so that they start again after a reboot though the API server is out of reach.
//!
//! Nothing of it is made use of while the API server answers: what it says wins, and is what
//! is written. Secrets and tokens are written only encrypted, with a key.

#![forbid(unsafe_code)]

pub mod entry;
mod matters;
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
    known_status,
};
use parking_lot::Mutex;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use self::{
    entry::{Entry, Kind},
    sealed::{KeyError, SealingKey},
    state::{Answered, State},
    store::{Store, StoreError},
};

/// First and longest delay until what cannot be written or removed is tried again.
const RETRY_BASE: Duration = Duration::from_secs(30);
const RETRY_MAX: Duration = Duration::from_secs(480);

/// Where a checkpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointOptions {
    /// Its directory (`--bootstrap-checkpoint-path`).
    pub dir: PathBuf,
    /// File of the key that secrets are encrypted with (`--bootstrap-checkpoint-key`); none
    /// are kept without.
    pub key_file: Option<PathBuf>,
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// There is no key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Its directory is of no use.
    #[error("--bootstrap-checkpoint-path: {0}")]
    Store(#[from] StoreError),
}

/// What is kept of this node's pods.
pub struct Checkpoint {
    store: Arc<Store>,
    /// The node's object, as an earlier kubelet had it.
    node: Option<Arc<Node>>,
    /// Why there is none; for people.
    no_node: String,
    state: Mutex<State>,
    /// Something is due.
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
    /// Reads what an earlier kubelet kept. A file of no use costs what it is of, and is said
    /// in the log.
    ///
    /// # Errors
    /// The directory or the key is of no use.
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
        let mut state = State::new(store.keeps(Kind::Secret));
        for entry in store.entries() {
            let names = match entry.kind() {
                Kind::Claim => names_of(&store, &entry, references::of_claim),
                Kind::Volume => names_of(&store, &entry, references::of_volume),
                _ => BTreeSet::new(),
            };
            if entry.kind() == Kind::Pod {
                match read_pod(&store, &entry) {
                    Ok(pod) => state.found_pod(entry.clone(), pod),
                    Err(error) => {
                        error!(pod = %entry, %error, "a pod cannot be restored");
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

    /// The node's object as an earlier kubelet had it, as far as it matters to pods.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.node.clone()
    }

    /// The pods that an earlier kubelet had from the API server. Those that were ending or
    /// had ended are among them, as such. One that only labels of the node let run here is
    /// left out when these are not known: it would be rejected for good.
    pub fn restored(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.state.lock().pods();
        pods.retain(|pod| {
            let is_over = known_status::has_ended(pod) || pod.metadata.deletion_timestamp.is_some();
            if self.node.is_some() || is_over || !matters::asks_for_labels(pod) {
                return true;
            }
            error!(
                pod = identity::full_name(pod), pod_uid = %PodUid::of(pod), error = self.no_node,
                "a pod waits for the API server: it asks for labels of the node"
            );
            false
        });
        pods
    }

    /// What is known of the kept pods that ran, or have ended, by UID: the API server may not
    /// have heard of it.
    pub fn last_statuses(&self) -> BTreeMap<PodUid, PodStatus> {
        let pods = self.state.lock().pods();
        let statuses = pods.iter().filter_map(|pod| {
            let status = pod.status.as_ref()?;
            known_status::has_run(status).then(|| (PodUid::of(pod), status.clone()))
        });
        statuses.collect()
    }

    /// Whether the API server has told the pods since this kubelet was started.
    pub fn is_told(&self) -> bool {
        self.state.lock().is_told()
    }

    /// The API server has these pods for this node, and no others.
    pub fn set_pods(&self, pods: &[Arc<Pod>]) {
        self.change(|state| state.set_pods(pods));
    }

    /// The API server has this pod, as it is now.
    pub fn put_pod(&self, pod: &Arc<Pod>) {
        self.change(|state| state.put_pod(pod));
    }

    /// The API server no longer has this pod.
    pub fn remove_pod(&self, pod: &Pod) {
        self.change(|state| state.remove_pod(pod));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.wake.notify_one();
    }

    /// Whether what is of that kind is kept at all.
    fn keeps(&self, kind: Kind) -> bool {
        self.store.keeps(kind)
    }

    /// Keeps an object that the API server gave, if some pod needs it.
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
                state.keep(Answered {
                    entry,
                    version,
                    text,
                    names,
                });
            }),
            Err(error) => warn!(object = %entry, %error, "an object cannot be kept"),
        }
    }

    /// The API server has no such object.
    fn forget(&self, entry: &Entry) {
        self.change(|state| {
            state.forget(entry);
            state.settle();
        });
    }

    /// An object as it was kept; `None` if it was not.
    ///
    /// # Errors
    /// What was kept is of no use.
    async fn read<K: DeserializeOwned + Send + 'static>(
        &self,
        entry: &Entry,
    ) -> Result<Option<K>, StoreError> {
        // What is still to be written is newer.
        if let Some(due) = self.state.lock().due(entry) {
            return Ok(due
                .as_ref()
                .and_then(|text| serde_json::from_slice(text).ok()));
        }
        let path = entry.path(self.store.dir());
        let (store, entry) = (Arc::clone(&self.store), entry.clone());
        let read = blocking(move || store.read_object(&entry)).await;
        read.map_err(|error| StoreError::Io {
            path,
            source: io::Error::other(error),
        })?
    }

    /// Writes what is to be kept and removes what is not, until `cancel`; and then what is
    /// left of it. What fails is tried again from time to time.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut failing = BTreeSet::new();
        let mut delay = RETRY_BASE;
        let mut retry_at = None;
        loop {
            self.do_due(&mut failing).await;
            if failing.is_empty() {
                (delay, retry_at) = (RETRY_BASE, None);
            } else if retry_at.is_none() {
                retry_at = Some(Instant::now() + delay);
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
                    delay = (delay * 2).min(RETRY_MAX);
                    retry_at = None;
                }
                () = self.wake.notified() => {}
            }
        }
        self.state.lock().retry();
        self.do_due(&mut failing).await;
    }

    /// Does what is due; what fails, or failed when it was last tried, is in `failing` then.
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
                            "the checkpoint is not what it should be; without the API server \
                             some pod will not start"
                        );
                    }
                }
            }
        }
    }

    /// Notes which containers start and which pods end, until `cancel`: `changes` wakes
    /// whenever some `status` does.
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

    /// Keeps the node's object as it changes, until `cancel`.
    pub async fn follow_node(
        &self,
        mut node: watch::Receiver<Option<Arc<Node>>>,
        cancel: CancellationToken,
    ) {
        loop {
            let now = node.borrow_and_update().clone();
            if let Some(now) = now {
                self.keep_node(&matters::node(&now));
            }
            let changed = cancel.run_until_cancelled(node.changed());
            if !matches!(changed.await, Some(Ok(()))) {
                return;
            }
        }
    }

    fn keep_node(&self, node: &Node) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let Some(entry) = Entry::new(Kind::Node, "", name) else {
            return;
        };
        match serde_json::to_vec(node) {
            Ok(text) => {
                let version = Some(format!("{:x}", Sha256::digest(text)));
                self.keep(entry, version, node, BTreeSet::new());
            }
            Err(error) => debug!(%error, "the node cannot be kept"),
        }
    }
}

/// What an object leads to; nothing, if its file is of no use.
fn names_of<K: DeserializeOwned>(
    store: &Store,
    entry: &Entry,
    names: fn(&K) -> BTreeSet<Entry>,
) -> BTreeSet<Entry> {
    match store.read_object(entry) {
        Ok(object) => object.as_ref().map(names).unwrap_or_default(),
        Err(error) => {
            error!(object = %entry, %error, "an object cannot be restored");
            BTreeSet::new()
        }
    }
}

fn read_pod(store: &Store, entry: &Entry) -> Result<Pod, StoreError> {
    let pod: Option<Pod> = store.read_object(entry)?;
    let pod = pod.filter(|pod| {
        let is_it = Entry::of_pod(pod).as_ref() == Some(entry);
        is_it && PodUid::told(PodUid::of(pod).as_str()).is_some()
    });
    let mut pod = pod.ok_or_else(|| StoreError::Corrupt {
        path: entry.path(store.dir()),
        why: "it has no such pod".to_owned(),
    })?;
    // It is no version of the API server's: that may have another status of it.
    pod.metadata.resource_version = None;
    Ok(pod)
}

/// # Errors
/// For people: why it is not known.
fn read_node(store: &Store, name: &str) -> Result<Node, String> {
    let dir = store.dir().join(Kind::Node.directory());
    let unknown = || format!("{} has no object of this node", dir.display());
    let entry = Entry::new(Kind::Node, "", name).ok_or_else(unknown)?;
    match store.read_object(&entry) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(unknown()),
        Err(error) => {
            error!(%error, "the node's object cannot be restored");
            Err(error.to_string())
        }
    }
}
