//! Objects of one kind, single or in groups, each with a watch that starts on first use and stops
//! after an idle time.

use std::{collections::BTreeMap, fmt, future::pending, sync::Arc, time::Duration};

use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{ObjectError, named::Named};
use crate::{
    list_watch::{ListWatch, ObjectChange},
    request::ApiError,
};

/// How long the first call waits for the API server, as upstream.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// The timeout of a watch, half an hour plus a random part of as much again, as upstream: there are
/// many watches with few events.
const WATCH_SECONDS: u32 = 30 * 60;

/// Something that a watch keeps current.
pub(super) trait WatchTarget: 'static {
    /// Identifies the objects of a watch.
    type Key: Clone + Ord + fmt::Debug + Send + Sync + 'static;
    /// The kind of the watched objects.
    type Kind: Resource + Clone + fmt::Debug + DeserializeOwned + Send + 'static;
    /// The known state; the default is the state without objects.
    type State: Clone + Default + Send + Sync + 'static;

    /// The list and watch of a key.
    fn changes(client: Client, key: &Self::Key) -> ListWatch<Self::Kind>;

    /// Applies a change to the known state.
    fn apply(known: &mut Self::State, change: ObjectChange<Self::Kind>);

    /// Whether the state cannot change until the object is deleted.
    fn is_final(known: &Self::State) -> bool {
        let _ = known;
        false
    }
}

/// Watches by key, each shared by all callers.
///
/// Invariant: a key has an entry exactly as long as a task watches it.
pub(super) struct WatchCache<F: WatchTarget> {
    client: Client,
    /// How long an unused watch stays open.
    idle: Duration,
    tasks: TaskTracker,
    cancel: CancellationToken,
    entries: Mutex<BTreeMap<F::Key, WatchEntry<F>>>,
}

struct WatchEntry<F: WatchTarget> {
    known: Arc<watch::Sender<Known<F>>>,
    /// Signals that a final state must be read again.
    renewed: Arc<Notify>,
    /// Time of the last call.
    used: Instant,
}

/// The known state, or why there is none.
type StateOrReason<F> = Result<<F as WatchTarget>::State, NoState>;

/// What is known about a key.
struct Known<F: WatchTarget> {
    state: StateOrReason<F>,
    /// Whether callers need not wait for the API server.
    is_current: bool,
}

/// Why there is no known state.
#[derive(Clone, Debug)]
pub(super) enum NoState {
    /// The API server has not answered yet.
    NotSynced,
    /// The API server does not let this node read the object; its message.
    Refused(String),
}

impl NoState {
    /// The error for an object `name`; `not_synced` if the API server has not answered yet.
    pub(super) fn error(
        self,
        resource: &'static str,
        name: &str,
        not_synced: ObjectError,
    ) -> ObjectError {
        match self {
            Self::NotSynced => not_synced,
            Self::Refused(message) => ObjectError::Refused {
                resource,
                name: name.to_owned(),
                message,
            },
        }
    }
}

impl From<&ApiError> for NoState {
    fn from(error: &ApiError) -> Self {
        match error.is_forbidden() {
            true => Self::Refused(error.to_string()),
            false => Self::NotSynced,
        }
    }
}

impl<F: WatchTarget> fmt::Debug for WatchCache<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchCache")
            .field("objects", &self.entries.lock().len())
            .finish_non_exhaustive()
    }
}

impl<F: WatchTarget> WatchCache<F> {
    /// Starts watches in `tasks` on demand. Each stops when cancelled or after being unused for
    /// `idle`.
    pub(super) fn new(
        client: Client,
        idle: Duration,
        tasks: TaskTracker,
        cancel: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            idle,
            tasks,
            cancel,
            entries: Mutex::default(),
        })
    }

    /// Returns the last known state. The first call waits briefly for the API server, even after a
    /// rejection: the server lets a node read an object once it knows that one of the node's pods
    /// refers to it.
    ///
    /// # Errors
    /// Why there is no known state.
    pub(super) async fn known(self: &Arc<Self>, key: F::Key) -> StateOrReason<F> {
        let mut known = self.subscribe(key);
        drop(timeout(FIRST_ANSWER, known.wait_for(|known| known.is_current)).await);
        let current = known.borrow();
        current.state.clone()
    }

    /// Reads a final state again: the object may have been deleted and created again. Until the API
    /// server has answered, calls wait for it as the first call does.
    pub(super) fn renew(&self, key: &F::Key) {
        let entries = self.entries.lock();
        let Some(entry) = entries.get(key) else {
            return;
        };
        let is_final = entry.known.send_if_modified(|known| {
            let is_final = known.state.as_ref().is_ok_and(F::is_final);
            known.is_current &= !is_final;
            is_final
        });
        if is_final {
            entry.renewed.notify_one();
        }
    }

    /// The state of a key, whose watch starts if necessary.
    fn subscribe(self: &Arc<Self>, key: F::Key) -> watch::Receiver<Known<F>> {
        let used = Instant::now();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&key) {
            entry.used = used;
            return entry.known.subscribe();
        }
        let (sender, known) = watch::channel(Known {
            state: Err(NoState::NotSynced),
            is_current: false,
        });
        if !self.cancel.is_cancelled() {
            let (sender, renewed) = (Arc::new(sender), Arc::new(Notify::new()));
            let entry = WatchEntry {
                known: Arc::clone(&sender),
                renewed: Arc::clone(&renewed),
                used,
            };
            entries.insert(key.clone(), entry);
            self.tasks
                .spawn(Arc::clone(self).run_watch(key, sender, renewed));
        }
        known
    }

    async fn run_watch(
        self: Arc<Self>,
        key: F::Key,
        known: Arc<watch::Sender<Known<F>>>,
        renewed: Arc<Notify>,
    ) {
        let start = || {
            let changes = F::changes(self.client.clone(), &key);
            Some(changes.with_watch_seconds(WATCH_SECONDS))
        };
        let mut changes = start();
        while let Some(idle_at) = self.idle_at(&key) {
            let change = async {
                match &mut changes {
                    Some(changes) => changes.try_next().await,
                    None => pending().await,
                }
            };
            let change = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return,
                () = renewed.notified() => {
                    changes = start();
                    continue;
                }
                change = change => change,
                () = sleep_until(idle_at) => continue,
            };
            known.send_modify(|known| {
                let change = match (change, &known.state) {
                    (Ok(change), _) => change,
                    // An error does not invalidate the known state.
                    (Err(_), Ok(_)) => return,
                    (Err(error), Err(_)) => {
                        known.state = Err(NoState::from(&error));
                        return;
                    }
                };
                let state = std::mem::replace(&mut known.state, Err(NoState::NotSynced));
                let mut state = state.unwrap_or_default();
                F::apply(&mut state, change);
                if F::is_final(&state) {
                    debug!(?key, "stopped watching an immutable object");
                    changes = None;
                }
                *known = Known {
                    state: Ok(state),
                    is_current: true,
                };
            });
        }
        debug!(?key, "stopped watching an unused object");
    }

    /// The time when the watch stops unless it is used again; `None` if it stops now, in which case
    /// its entry is removed.
    fn idle_at(&self, key: &F::Key) -> Option<Instant> {
        let mut entries = self.entries.lock();
        let idle_at = entries.get(key)?.used + self.idle;
        if idle_at > Instant::now() {
            return Some(idle_at);
        }
        entries.remove(key);
        None
    }
}

impl<K: Named> WatchTarget for K {
    /// Namespace, empty for cluster-scoped objects, and name.
    type Key = (String, String);
    type Kind = K;
    type State = Option<Arc<K>>;

    fn changes(client: Client, (namespace, name): &Self::Key) -> ListWatch<K> {
        let api = K::api(client, namespace);
        ListWatch::new(api, format!("metadata.name={name}"))
    }

    fn apply(known: &mut Self::State, change: ObjectChange<K>) {
        let object = match change {
            ObjectChange::Replaced(objects) => objects.into_iter().next(),
            ObjectChange::Updated(object) => Some(object),
            ObjectChange::Deleted(_) => None,
        };
        *known = object.map(|mut object| {
            object.meta_mut().managed_fields = None;
            Arc::new(object)
        });
    }

    fn is_final(known: &Self::State) -> bool {
        known.as_ref().is_some_and(|object| object.is_immutable())
    }
}

impl<K: Named> WatchCache<K> {
    /// Returns the last known state of the object.
    pub(super) async fn get(
        self: &Arc<Self>,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<K>, ObjectError> {
        if !K::can_be_named(namespace, name) {
            return Err(ObjectError::not_found(K::RESOURCE, name));
        }
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.known(key).await.map_err(|unknown| {
            let not_synced = ObjectError::NotSynced {
                resource: K::RESOURCE,
            };
            unknown.error(K::RESOURCE, name, not_synced)
        })?;
        known.ok_or_else(|| ObjectError::not_found(K::RESOURCE, name))
    }
}
