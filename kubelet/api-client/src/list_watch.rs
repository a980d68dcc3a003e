//! Objects of the API server, first as a list and then as what changes: resumed where
//! a watch ended, and listed anew when the server no longer knows what changed since.

use std::{fmt, pin::Pin, time::Duration};

use futures::{Stream, StreamExt as _};
use kube::{
    Api, Resource,
    api::{ListParams, WatchEvent, WatchParams},
    core::Status,
};
use kubelet_host::repeatable;
use kubelet_pacing::backoff::jittered;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::request::{ApiError, ask};

/// First and longest delay after something failed, and how long nothing may fail until
/// the first holds again; all as upstream.
const RETRY_BASE: Duration = Duration::from_millis(800);
const RETRY_MAX: Duration = Duration::from_secs(30);
const RETRY_RESET: Duration = Duration::from_secs(120);

/// The server ends a watch after this many seconds and by chance up to as many more,
/// unless it is said otherwise; as upstream.
const WATCH_SECONDS: u32 = 300;
/// A watch that the server did not end by so much later is dead.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// A watch that ends sooner, and of which nothing was heard, has failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// What became known of the objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<K> {
    /// These are all objects.
    All(Vec<K>),
    /// This one is new, or another than before.
    Put(K),
    /// This one is gone; as it was last.
    Gone(K),
}

/// The objects of one kind that a selector selects.
///
/// Invariant: whoever takes every change has what the server has, or had a while ago; but
/// for an object that cannot be read, of which they have what it was before.
pub struct ListWatch<K> {
    api: Api<K>,
    field_selector: String,
    /// The server ends a watch after so many, and by chance up to as many more.
    watch_seconds: u32,
    state: State<K>,
    listed_from: ListedFrom,
    /// Nothing is asked before.
    not_before: Option<Instant>,
    delay: Duration,
    failed: Option<Instant>,
    /// What the server was last said to have refused.
    complaint: Option<String>,
    /// After which version something came last that cannot be read.
    passed_over: Option<String>,
}

/// What a list is made of; all as upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListedFrom {
    /// What the API server has in its cache, however old it is: the database is spared when
    /// all nodes ask at once.
    Cache,
    /// The same, once it is as new as this version: what was known does not become older.
    CacheSince(String),
    /// The database, for the cache does not have that version.
    Database,
}

enum State<K> {
    /// Nothing is known.
    Unknown,
    /// Everything up to this version is known.
    Known(String),
    /// What comes after is being heard.
    Watching(Watching<K>),
}

struct Watching<K> {
    version: String,
    events: Pin<Box<dyn Stream<Item = Result<WatchEvent<K>, kube::Error>> + Send>>,
    begun: Instant,
    deadline: Instant,
    heard: bool,
}

/// What comes of an event.
enum Step<K> {
    /// To be told.
    Told(Change<K>),
    /// Nothing, and the watch goes on.
    Nothing,
    /// Nothing: it cannot be read. The watch goes on, for all the other objects.
    Unreadable(kube::Error),
    /// The watch is over, and resumed.
    Ended,
    /// The watch is over and so is what was known; everything is listed.
    Expired,
    /// The watch is over, and resumed after a while.
    Failed(ApiError),
}

impl<K> fmt::Debug for ListWatch<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListWatch")
            .field("field_selector", &self.field_selector)
            .finish_non_exhaustive()
    }
}

impl<K> ListWatch<K>
where
    K: Resource + Clone + DeserializeOwned + fmt::Debug + Send + 'static,
{
    /// The objects of `api` that `field_selector` selects; all, if it is empty.
    pub fn new(api: Api<K>, field_selector: String) -> Self {
        Self {
            api,
            field_selector,
            watch_seconds: WATCH_SECONDS,
            state: State::Unknown,
            listed_from: ListedFrom::Cache,
            not_before: None,
            delay: RETRY_BASE,
            failed: None,
            complaint: None,
            passed_over: None,
        }
    }

    /// Has the server end a watch after so many seconds, and by chance up to as many more,
    /// instead of five minutes.
    #[must_use]
    pub fn with_watch_seconds(mut self, seconds: u32) -> Self {
        self.watch_seconds = seconds;
        self
    }

    /// Has the first list be as new as this version, if there is one.
    #[must_use]
    pub fn since(mut self, version: Option<String>) -> Self {
        self.listed_from = version.map_or(ListedFrom::Cache, ListedFrom::CacheSince);
        self
    }

    /// The next change, for as long as it takes: whatever fails is tried again. What is
    /// dropped before it is done loses nothing.
    pub async fn next(&mut self) -> Change<K> {
        loop {
            if let Ok(change) = self.try_next().await {
                return change;
            }
        }
    }

    /// As [`Self::next`], for those who want to know what fails meanwhile.
    ///
    /// # Errors
    /// The server cannot be asked, or does not answer. It is asked again by the next call,
    /// after a while.
    pub async fn try_next(&mut self) -> Result<Change<K>, ApiError> {
        loop {
            if let Some(at) = self.not_before {
                tokio::time::sleep_until(at).await;
                self.not_before = None;
            }
            match &mut self.state {
                State::Unknown => {
                    let params = self.list_params();
                    match ask(self.api.list(&params)).await {
                        Ok(list) => {
                            let version = list.metadata.resource_version.unwrap_or_default();
                            self.listed_from = ListedFrom::CacheSince(version.clone());
                            self.state = State::Known(version);
                            self.complaint = None;
                            return Ok(Change::All(list.items));
                        }
                        // The next one is of another kind, and made at once.
                        Err(error)
                            if self.listed_from != ListedFrom::Database
                                && (error.is_expired() || error.is_version_too_large()) =>
                        {
                            self.listed_from = ListedFrom::Database;
                        }
                        Err(error) => return Err(self.back_off(error)),
                    }
                }
                State::Known(version) => {
                    let version = version.clone();
                    self.watch(version).await?;
                }
                State::Watching(watching) => match watching.next().await {
                    Step::Told(change) => return Ok(change),
                    Step::Nothing => {}
                    Step::Unreadable(error) => {
                        // It comes again with each watch until another event follows it.
                        if self.passed_over.as_ref() != Some(&watching.version) {
                            warn!(
                                resource = self.api.resource_url(), %error,
                                "an event of a watch cannot be read; passing it over"
                            );
                            self.passed_over = Some(watching.version.clone());
                        }
                    }
                    Step::Ended => self.state = State::Known(std::mem::take(&mut watching.version)),
                    Step::Expired => {
                        let version = std::mem::take(&mut watching.version);
                        self.expired(version);
                    }
                    Step::Failed(error) => {
                        self.state = State::Known(std::mem::take(&mut watching.version));
                        return Err(self.back_off(error));
                    }
                },
            }
        }
    }

    async fn watch(&mut self, version: String) -> Result<(), ApiError> {
        let least = self.watch_seconds;
        let spread = repeatable::random() % u64::from(least.max(1));
        let seconds = least + u32::try_from(spread).unwrap_or_default();
        let mut params = WatchParams::default().timeout(seconds);
        if !self.field_selector.is_empty() {
            params = params.fields(&self.field_selector);
        }
        match ask(self.api.watch(&params, &version)).await {
            Ok(events) => {
                let begun = Instant::now();
                self.complaint = None;
                self.state = State::Watching(Watching {
                    version,
                    events: Box::pin(events),
                    begun,
                    deadline: begun + Duration::from_secs(u64::from(seconds)) + WATCH_GRACE,
                    heard: false,
                });
            }
            Err(error) if error.is_expired() => self.expired(version),
            Err(error) => return Err(self.back_off(error)),
        }
        Ok(())
    }

    fn list_params(&self) -> ListParams {
        let params = match &self.listed_from {
            ListedFrom::Cache => ListParams::default().at("0"),
            ListedFrom::CacheSince(version) if !version.is_empty() => {
                ListParams::default().at(version)
            }
            ListedFrom::CacheSince(_) | ListedFrom::Database => ListParams::default(),
        };
        match &*self.field_selector {
            "" => params,
            selector => params.fields(selector),
        }
    }

    /// The server has forgotten what came after this version. Everything is listed, after a
    /// while: the version of that list may be forgotten as well.
    fn expired(&mut self, version: String) {
        debug!(
            resource = self.api.resource_url(),
            "the API server forgot what changed; listing everything"
        );
        self.state = State::Unknown;
        self.listed_from = ListedFrom::CacheSince(version);
        self.wait(None);
    }

    /// Has the next request wait.
    fn back_off(&mut self, error: ApiError) -> ApiError {
        if !error.is_unreachable() {
            let complaint = error.to_string();
            if self.complaint.as_ref() != Some(&complaint) {
                warn!(resource = self.api.resource_url(), %error, "cannot list or watch");
                self.complaint = Some(complaint);
            }
        }
        self.wait(error.retry_after());
        error
    }

    /// Has the next request wait: as long as the server wants, if it said so, and longer each
    /// time anyway.
    fn wait(&mut self, wanted: Option<Duration>) {
        let now = Instant::now();
        if self.failed.is_none_or(|last| now - last > RETRY_RESET) {
            self.delay = RETRY_BASE;
        }
        self.failed = Some(now);
        let delay = jittered(self.delay);
        self.not_before = Some(now + wanted.map_or(delay, |wanted| delay.max(wanted)));
        self.delay = (self.delay * 2).min(RETRY_MAX);
    }
}

impl<K: Resource> Watching<K> {
    async fn next(&mut self) -> Step<K> {
        let next = tokio::time::timeout_at(self.deadline, self.events.next());
        let Ok(event) = next.await else {
            return Step::Ended;
        };
        let too_short = !self.heard && self.begun.elapsed() < SHORT_WATCH;
        self.heard = true;
        match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                self.reached(&object);
                Step::Told(Change::Put(object))
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                self.reached(&object);
                Step::Told(Change::Gone(object))
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                self.version = bookmark.metadata.resource_version;
                Step::Nothing
            }
            Some(Ok(WatchEvent::Error(status))) => failed(kube::Error::Api(status)),
            Some(Err(error)) if is_unreadable(&error) => Step::Unreadable(error),
            Some(Err(error)) => failed(error),
            None if too_short => Step::Failed(ApiError::Unreachable(kube::Error::ReadEvents(
                std::io::ErrorKind::UnexpectedEof.into(),
            ))),
            None => Step::Ended,
        }
    }

    /// Everything up to this object is known.
    fn reached(&mut self, object: &K) {
        if let Some(version) = &object.meta().resource_version {
            self.version.clone_from(version);
        }
    }
}

/// What an error in a watch comes to.
fn failed<K>(error: kube::Error) -> Step<K> {
    match ApiError::from(error) {
        error if error.is_expired() => Step::Expired,
        error => Step::Failed(error),
    }
}

/// Whether an error is about one event alone. kube takes what is no event for a status, of
/// which every field may be missing.
fn is_unreadable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => **status == Status::default(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
