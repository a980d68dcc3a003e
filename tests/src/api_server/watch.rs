//! Watches: from a revision or from what there is, with bookmarks, until their
//! time is over, their revision expires or a test cuts them.

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
    storage::{Change, Done},
    verbs::too_old,
};

/// How often a watch that asked for bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long a watch lasts that does not say; upstream takes 30 to 60 minutes.
const LASTS: Duration = Duration::from_secs(45 * 60);

/// What ends watches, beside themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cuts {
    /// Counts the times that all watches were ended in order.
    pub(super) ended: u64,
    /// Counts the times that all connections were broken.
    pub(super) broken: u64,
}

/// How an object is shown in a watch.
pub(super) type Show = Arc<dyn Fn(Value) -> Value + Send + Sync>;

struct Watch {
    server: Arc<Server>,
    target: Target,
    selectors: Selectors,
    show: Show,
    revision: u64,
    pending: VecDeque<Value>,
    bookmarks: bool,
    /// Whether the next bookmark is the end of what there was.
    ends_beginning: bool,
    next_bookmark: Instant,
    deadline: Instant,
    /// Cuts before it began do not end it.
    begun: Cuts,
    _watching: Arc<()>,
    over: bool,
}

impl Server {
    /// Begins a watch: a stream of events, one JSON object a line.
    pub(super) fn watch(
        self: &Arc<Self>,
        target: &Target,
        query: &Query,
        show: Show,
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
            begun: *self.cuts.borrow(),
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
    /// Queues all that there is.
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
            // What comes from here on is not missed.
            let mut news = pin!(server.news.notified());
            news.as_mut().enable();
            let cuts = *server.cuts.borrow();
            if cuts.broken != self.begun.broken {
                if self.over {
                    return None;
                }
                self.over = true;
                let error = io::Error::new(io::ErrorKind::ConnectionReset, "connection broken");
                return Some((Err(error), self));
            }
            if cuts.ended != self.begun.ended {
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
                () = news => false,
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

    /// Queues what happened since.
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

    /// A change as this watch sees it: what leaves its selection is deleted to it.
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
        let after = change.done != Done::Deleted && selected(&change.object);
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
