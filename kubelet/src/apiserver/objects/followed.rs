//! Single objects of one kind, each followed from when it is first asked for until
//! nobody has asked for it for a while.

use std::{collections::BTreeMap, fmt, future::pending, sync::Arc, time::Duration};

use kube::Client;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use super::{ObjectError, named::Named};
use crate::apiserver::{
    list_watch::{Change, ListWatch},
    request::ApiError,
};

/// How long whoever asks first waits for the API server, as upstream.
pub(super) const FIRST_ANSWER: Duration = Duration::from_secs(1);
/// The server ends a watch after half an hour, and by chance up to as much later, as
/// upstream: there are many of them, and little comes of each.
const WATCH_SECONDS: u32 = 30 * 60;

/// Namespace, empty where there is none, and name.
type Key = (String, String);

/// Objects that are followed, each by one watch for all who ask.
///
/// Invariant: an object is among the entries exactly as long as a task follows it.
pub(super) struct Followed<K> {
    client: Client,
    /// How long an object is followed that nobody asks for.
    idle: Duration,
    tasks: TaskTracker,
    cancel: CancellationToken,
    entries: Mutex<BTreeMap<Key, Entry<K>>>,
}

struct Entry<K> {
    known: watch::Receiver<Known<K>>,
    /// When it was last asked for.
    asked: Instant,
}

/// What is known of an object.
#[derive(Clone)]
enum Known<K> {
    Nothing,
    /// This node may not have it, in the server's words.
    Refused(String),
    Absent,
    Present(Arc<K>),
}

impl<K> Known<K> {
    const fn is_answer(&self) -> bool {
        matches!(self, Self::Absent | Self::Present(_))
    }

    /// The server gave no answer; whether that is news. What it once said holds.
    fn failed(&mut self, error: &ApiError) -> bool {
        if self.is_answer() {
            return false;
        }
        *self = match error.is_forbidden() {
            true => Self::Refused(error.to_string()),
            false => Self::Nothing,
        };
        true
    }
}

impl<K> fmt::Debug for Followed<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed")
            .field("objects", &self.entries.lock().len())
            .finish_non_exhaustive()
    }
}

impl<K: Named> Followed<K> {
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

    /// The object as it was last heard of. The first who asks waits for the server, though
    /// not for long.
    pub(super) async fn get(
        self: &Arc<Self>,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<K>, ObjectError> {
        if !K::can_be_named(namespace, name) {
            return Err(ObjectError::not_found(K::RESOURCE, name));
        }
        let mut known = self.known(namespace, name);
        // Also what is refused may be had in a moment: the server lets a node have what its
        // pods name once it has heard of them.
        drop(timeout(FIRST_ANSWER, known.wait_for(Known::is_answer)).await);
        let known = known.borrow().clone();
        match known {
            Known::Present(object) => Ok(object),
            Known::Refused(message) => Err(ObjectError::Refused {
                resource: K::RESOURCE,
                name: name.to_owned(),
                message,
            }),
            Known::Absent => Err(ObjectError::not_found(K::RESOURCE, name)),
            Known::Nothing => Err(ObjectError::NotSynced {
                resource: K::RESOURCE,
            }),
        }
    }

    /// What is known of an object, which is followed from now on.
    fn known(self: &Arc<Self>, namespace: &str, name: &str) -> watch::Receiver<Known<K>> {
        let key = (namespace.to_owned(), name.to_owned());
        let asked = Instant::now();
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(&key) {
            entry.asked = asked;
            return entry.known.clone();
        }
        let (sender, known) = watch::channel(Known::Nothing);
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

    async fn follow(self: Arc<Self>, key: Key, known: watch::Sender<Known<K>>) {
        let (namespace, name) = &key;
        let api = K::api(self.client.clone(), namespace);
        let changes = ListWatch::new(api, format!("metadata.name={name}"));
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
            let object = match change {
                Ok(Change::All(objects)) => objects.into_iter().next(),
                Ok(Change::Put(object)) => Some(object),
                Ok(Change::Gone(_)) => None,
                Err(error) => {
                    known.send_if_modified(|known| known.failed(&error));
                    continue;
                }
            };
            if object.as_ref().is_some_and(K::is_immutable) {
                debug!(resource = K::RESOURCE, namespace, name, "is immutable");
                changes = None;
            }
            known.send_replace(object.map_or(Known::Absent, |mut object| {
                object.meta_mut().managed_fields = None;
                Known::Present(Arc::new(object))
            }));
        }
        debug!(
            resource = K::RESOURCE,
            namespace, name, "nobody asks for it any more"
        );
    }

    /// When it is no longer to be followed if nobody asks for it; `None` when that is now,
    /// and its entry is gone.
    fn idle_at(&self, key: &Key) -> Option<Instant> {
        let mut entries = self.entries.lock();
        let idle_at = entries.get(key)?.asked + self.idle;
        if idle_at > Instant::now() {
            return Some(idle_at);
        }
        entries.remove(key);
        None
    }
}
