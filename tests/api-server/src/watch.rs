//! Watches. They start at a revision or with the current objects, can send bookmarks, and last
//! until their timeout, the compaction of their revision or a test's cut.

use std::{collections::VecDeque, io, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{Stream, stream};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use super::{
    Server,
    errors::ApiError,
    event_versions::to_shown,
    request::{Query, Target},
    selectors::Selectors,
    storage::{Change, ChangeType},
    verbs::too_old,
};

/// The interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The default timeout of a watch; upstream's is 30 to 60 minutes.
const LASTS: Duration = Duration::from_secs(45 * 60);

/// Counters that end watches when they change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Interruptions {
    /// How often all watches were ended cleanly.
    pub(super) ended: u64,
    /// How often all connections were broken.
    pub(super) broken: u64,
}

/// The formatter of objects in a watch.
pub(super) type ObjectFormatter = Arc<dyn Fn(Value) -> Value + Send + Sync>;

struct Watch {
    server: Arc<Server>,
    target: Target,
    selectors: Selectors,
    show: ObjectFormatter,
    revision: u64,
    pending: VecDeque<Value>,
    bookmarks: bool,
    /// Whether the next bookmark marks the end of the initial events.
    ends_beginning: bool,
    next_bookmark: Instant,
    deadline: Instant,
    /// The counters at the start; earlier interruptions do not end the watch.
    begun: Interruptions,
    _watching: Arc<()>,
    over: bool,
}

impl Server {
    /// Starts a watch: a stream of events, one JSON object per line.
    pub(super) fn watch(
        self: &Arc<Self>,
        target: &Target,
        query: &Query,
        show: ObjectFormatter,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>, ApiError> {
        let selectors = target.selectors(query)?;
        let initial = query.truth("sendInitialEvents");
        let bookmarks = query.truth("allowWatchBookmarks");
        if initial && query.text("resourceVersionMatch") != "NotOlderThan" {
            return Err(ApiError::new(
                422,
                "Invalid",
                "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            ));
        }
        let lasts = query
            .seconds("timeoutSeconds")
            .filter(|time| !time.is_zero());
        let mut watch = Watch {
            server: Arc::clone(self),
            target: target.clone(),
            selectors,
            show,
            revision: 0,
            pending: VecDeque::new(),
            bookmarks,
            ends_beginning: false,
            next_bookmark: Instant::now() + BOOKMARK_EVERY,
            deadline: Instant::now() + lasts.unwrap_or(LASTS),
            begun: *self.interruptions.borrow(),
            _watching: Arc::clone(&self.watching),
            over: false,
        };
        let from = query.text("resourceVersion");
        let resumes = !initial && !matches!(from, "" | "0");
        if resumes {
            watch.revision = from.parse().map_err(|_| {
                ApiError::bad_request(format!("Invalid value: {from:?}: invalid resource version"))
            })?;
        } else {
            watch.begin();
            watch.ends_beginning = bookmarks && (initial || from == "0");
            if initial && bookmarks {
                watch.mark();
            }
        }
        Ok(stream::unfold(watch, Watch::next))
    }
}

impl Watch {
    /// Queues the current objects.
    fn begin(&mut self) {
        let storage = self.server.storage.lock();
        self.revision = storage.revision();
        let objects = storage.list(self.target.resource, self.target.namespace.as_deref());
        drop(storage);
        for (_, object) in objects {
            if self.selectors.match_object(&object) {
                let event = self.event("ADDED", &object);
                self.pending.push_back(event);
            }
        }
    }

    /// Queues a bookmark.
    fn mark(&mut self) {
        let mut bookmark = self.bookmark();
        if std::mem::take(&mut self.ends_beginning) {
            bookmark["object"]["metadata"]["annotations"] =
                json!({"k8s.io/initial-events-end": "true"});
        }
        self.pending.push_back(bookmark);
    }

    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        let server = Arc::clone(&self.server);
        loop {
            // Changes from here on wake this watch, so none is missed.
            let mut changed = pin!(server.changed.notified());
            changed.as_mut().enable();
            let interruptions = *server.interruptions.borrow();
            if interruptions.broken != self.begun.broken {
                if self.over {
                    return None;
                }
                self.over = true;
                let error = io::Error::new(io::ErrorKind::ConnectionReset, "connection broken");
                return Some((Err(error), self));
            }
            if interruptions.ended != self.begun.ended {
                return None;
            }
            if let Some(event) = self.pending.pop_front() {
                let line = format!("{event}\n");
                return Some((Ok(Bytes::from(line)), self));
            }
            if self.over {
                return None;
            }
            self.follow();
            if !self.pending.is_empty() {
                continue;
            }
            let wake = if self.bookmarks {
                self.next_bookmark.min(self.deadline)
            } else {
                self.deadline
            };
            let timed = tokio::select! {
                biased;
                () = changed => false,
                () = sleep_until(wake) => true,
            };
            if timed {
                self.over = self.deadline <= Instant::now();
                self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                if self.bookmarks {
                    self.mark();
                }
            }
        }
    }

    /// Queues the changes since the last one seen.
    fn follow(&mut self) {
        let storage = self.server.storage.lock();
        match storage.changes_after(self.revision) {
            Ok(changes) => {
                let events: Vec<_> = changes.filter_map(|change| self.seen(change)).collect();
                self.pending.extend(events);
                self.revision = self.revision.max(storage.revision());
            }
            Err(compacted) => {
                let expired = too_old(self.revision, compacted.oldest);
                self.pending
                    .push_back(json!({"type": "ERROR", "object": expired.status()}));
                self.over = true;
            }
        }
    }

    /// Converts a change to an event of this watch. An object that no longer matches the selectors
    /// is reported as deleted.
    fn seen(&self, change: &Change) -> Option<Value> {
        let here = change.key.resource == self.target.resource.stored().qualified()
            && self
                .target
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == change.key.namespace);
        if !here {
            return None;
        }
        let selected = |object: &Value| self.selectors.match_object(object);
        let before = change.previous.as_deref().is_some_and(selected);
        let after = change.change_type != ChangeType::Deleted && selected(&change.object);
        match (before, after) {
            (false, false) => None,
            (false, true) => Some(self.event("ADDED", &change.object)),
            (true, true) => Some(self.event("MODIFIED", &change.object)),
            (true, false) => {
                let mut last = Value::clone(change.previous.as_deref()?);
                last["metadata"]["resourceVersion"] = json!(change.revision.to_string());
                Some(self.event("DELETED", &last))
            }
        }
    }

    fn event(&self, kind: &str, object: &Value) -> Value {
        let shown = to_shown(self.target.resource, object);
        json!({"type": kind, "object": (self.show)(shown)})
    }

    fn bookmark(&self) -> Value {
        json!({"type": "BOOKMARK", "object": {
            "kind": self.target.resource.kind,
            "apiVersion": self.target.resource.api_version(),
            "metadata": {"resourceVersion": self.revision.to_string(), "creationTimestamp": null},
        }})
    }
}
