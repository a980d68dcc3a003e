//! Objects of one kind, a single one or a few that belong together, each followed from
//! when it is first asked for until nobody has asked for it for a while.

use std::{collections::BTreeMap, fmt, future::pending, sync::Arc, time::Duration};

use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{ObjectError, named::Named};
use crate::{
    list_watch::{Change, ListWatch},
    request::ApiError,
};

/// How long whoever asks first waits for the API server, as upstream.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// The server ends a watch after half an hour, and by chance up to as much later, as
/// upstream: there are many of them, and little comes of each.
const WATCH_SECONDS: u32 = 30 * 60;

/// What is followed by one watch each.
pub(super) trait Follow: 'static {
    /// Says what is asked for.
    type Key: Clone + Ord + fmt::Debug + Send + Sync + 'static;
    /// What the watch is of.
    type Kind: Resource + Clone + fmt::Debug + DeserializeOwned + Send + 'static;
    /// What is known; as it is before anything is there.
    type Known: Clone + Default + Send + Sync + 'static;

    /// What comes of a key, as the server tells it.
    fn changes(client: Client, key: &Self::Key) -> ListWatch<Self::Kind>;

    /// Has what is known be what it is after a change.
    fn apply(known: &mut Self::Known, change: Change<Self::Kind>);

    /// Whether it stays as it is until it is deleted.
    fn is_final(known: &Self::Known) -> bool {
        let _ = known;
        false
    }
}

/// What is followed, each by one watch for all who ask.
///
/// Invariant: a key is among the entries exactly as long as a task follows it.
pub(super) struct Followed<F: Follow> {
    client: Client,
    /// How long something is followed that nobody asks for.
    idle: Duration,
    tasks: TaskTracker,
    cancel: CancellationToken,
    entries: Mutex<BTreeMap<F::Key, Entry<F>>>,
}

struct Entry<F: Follow> {
    known: Known<F>,
    /// When it was last asked for.
    asked: Instant,
}

/// What is known, or why nothing is.
type Known<F> = watch::Receiver<Heard<F>>;
type Heard<F> = Result<<F as Follow>::Known, Unknown>;

/// Why nothing is known.
#[derive(Clone, Debug)]
pub(super) enum Unknown {
    /// The server has said nothing yet.
    Unheard,
    /// This node may not have it, in the server's words.
    Refused(String),
}

impl Unknown {
    /// What it comes to for who asked for `name`; `unheard`, if nothing was heard.
    pub(super) fn error(
        self,
        resource: &'static str,
        name: &str,
        unheard: ObjectError,
    ) -> ObjectError {
        match self {
            Self::Unheard => unheard,
            Self::Refused(message) => ObjectError::Refused {
                resource,
                name: name.to_owned(),
                message,
            },
        }
    }
}

impl From<&ApiError> for Unknown {
    fn from(error: &ApiError) -> Self {
        match error.is_forbidden() {
            true => Self::Refused(error.to_string()),
            false => Self::Unheard,
        }
    }
}

impl<F: Follow> fmt::Debug for Followed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed")
            .field("objects", &self.entries.lock().len())
            .finish_non_exhaustive()
    }
}

impl<F: Follow> Followed<F> {
    /// Follows what is asked for, in `tasks` and until cancelled, and what nobody asks for
    /// not longer than for `idle`.
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

    /// What was last heard of it. The first who asks waits for the server, though not for
    /// long. Also what is refused may be had in a moment: the server lets a node have what its
    /// pods name once it has heard of them.
    ///
    /// # Errors
    /// Why nothing is known.
    pub(super) async fn known(self: &Arc<Self>, key: F::Key) -> Heard<F> {
        let mut known = self.followed(key);
        drop(timeout(FIRST_ANSWER, known.wait_for(Result::is_ok)).await);
        let heard = known.borrow();
        heard.clone()
    }

    /// What is known of it, which is followed from now on.
    fn followed(self: &Arc<Self>, key: F::Key) -> Known<F> {
        let asked = Instant::now();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&key) {
            entry.asked = asked;
            return entry.known.clone();
        }
        let (sender, known) = watch::channel(Err(Unknown::Unheard));
        if !self.cancel.is_cancelled() {
            let entry = Entry {
                known: known.clone(),
                asked,
            };
            entries.insert(key.clone(), entry);
            self.tasks.spawn(Arc::clone(self).follow(key, sender));
        }
        known
    }

    async fn follow(self: Arc<Self>, key: F::Key, known: watch::Sender<Heard<F>>) {
        let changes = F::changes(self.client.clone(), &key);
        let mut changes = Some(changes.with_watch_seconds(WATCH_SECONDS));
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
                change = change => change,
                () = sleep_until(idle_at) => continue,
            };
            known.send_modify(|heard| {
                let change = match (change, &heard) {
                    (Ok(change), _) => change,
                    // What the server once said holds.
                    (Err(_), Ok(_)) => return,
                    (Err(error), Err(_)) => {
                        *heard = Err(Unknown::from(&error));
                        return;
                    }
                };
                let mut known = std::mem::replace(heard, Err(Unknown::Unheard)).unwrap_or_default();
                F::apply(&mut known, change);
                if F::is_final(&known) {
                    debug!(?key, "is immutable");
                    changes = None;
                }
                *heard = Ok(known);
            });
        }
        debug!(?key, "nobody asks for it any more");
    }

    /// When it is no longer to be followed if nobody asks for it; `None` when that is now,
    /// and its entry is gone.
    fn idle_at(&self, key: &F::Key) -> Option<Instant> {
        let mut entries = self.entries.lock();
        let idle_at = entries.get(key)?.asked + self.idle;
        if idle_at > Instant::now() {
            return Some(idle_at);
        }
        entries.remove(key);
        None
    }
}

impl<K: Named> Follow for K {
    /// Namespace, empty where there is none, and name.
    type Key = (String, String);
    type Kind = K;
    type Known = Option<Arc<K>>;

    fn changes(client: Client, (namespace, name): &Self::Key) -> ListWatch<K> {
        let api = K::api(client, namespace);
        ListWatch::new(api, format!("metadata.name={name}"))
    }

    fn apply(known: &mut Self::Known, change: Change<K>) {
        let object = match change {
            Change::All(objects) => objects.into_iter().next(),
            Change::Put(object) => Some(object),
            Change::Gone(_) => None,
        };
        *known = object.map(|mut object| {
            object.meta_mut().managed_fields = None;
            Arc::new(object)
        });
    }

    fn is_final(known: &Self::Known) -> bool {
        known.as_ref().is_some_and(|object| object.is_immutable())
    }
}

impl<K: Named> Followed<K> {
    /// The object as it was last heard of.
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
            let unheard = ObjectError::NotSynced {
                resource: K::RESOURCE,
            };
            unknown.error(K::RESOURCE, name, unheard)
        })?;
        known.ok_or_else(|| ObjectError::not_found(K::RESOURCE, name))
    }
}
