//! Lists and watches objects of the API server. A watch resumes where the last one ended; objects
//! are listed again if the server no longer has the changes since then.

use std::{fmt, marker::PhantomData, time::Duration};

use kube::{
    Api, Resource,
    api::{ListParams, WatchParams},
    core::Request,
};
use kubelet_host::repeatable;
use kubelet_pacing::backoff::jittered;
use retry_delay::RetryDelay;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::request::{ApiError, ask};
use watch_events::{EventError, Line, WatchEvent, WatchEvents};

mod watch_events;

/// First and longest delay after a failure, and the time without failures after which the first
/// delay applies again; all as upstream.
const RETRY_BASE: Duration = Duration::from_millis(800);
const RETRY_MAX: Duration = Duration::from_secs(30);
const RETRY_RESET: Duration = Duration::from_secs(120);

/// The default timeout of a watch. The server ends a watch after this many seconds plus a random
/// part of as many again, as upstream.
const WATCH_SECONDS: u32 = 300;
/// A watch is dead if the server has not ended it this long after its timeout.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// A watch that ends sooner than this without an event has failed.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// A change of the objects.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectChange<K> {
    /// The complete list of objects.
    Replaced(Vec<K>),
    /// An object was added or modified.
    Updated(K),
    /// An object was deleted; this is its last state.
    Deleted(K),
}

/// The objects of one kind that match a field selector.
///
/// Invariant: a caller that applies every change has a current or earlier state of the server's
/// objects, except that an object that cannot be parsed keeps its previous state.
pub struct ListWatch<K> {
    api: Api<K>,
    field_selector: String,
    /// The timeout of a watch, without the random part.
    watch_seconds: u32,
    state: ListWatchState<K>,
    listed_from: ListedFrom,
    /// No request is made before this time.
    not_before: Option<Instant>,
    delay: RetryDelay,
    failed: Option<Instant>,
    /// The last rejection that was logged.
    complaint: Option<String>,
    /// The version before the last event that could not be parsed.
    passed_over: Option<String>,
}

/// The source of a list; all as upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ListedFrom {
    /// The API server's cache at any version: this spares the database when all nodes list at once.
    Cache,
    /// The API server's cache at this version or later, so that the known state never goes back.
    CacheSince(String),
    /// The database, because the cache does not have that version.
    Database,
}

enum ListWatchState<K> {
    /// Nothing is known yet.
    Unknown,
    /// The state of this version is known.
    Known(String),
    /// A watch is open.
    Watching(OpenWatch<K>),
}

struct OpenWatch<K> {
    version: String,
    events: WatchEvents,
    kind: PhantomData<fn() -> K>,
    begun: Instant,
    deadline: Instant,
    heard: bool,
}

/// The result of an event.
enum Step<K> {
    /// A change for the caller.
    Changed(ObjectChange<K>),
    /// No change; the watch continues.
    Nothing,
    /// The event cannot be parsed. The watch continues for the other objects.
    Unreadable(EventError),
    /// The watch has ended and resumes.
    Ended,
    /// The watch has ended and cannot resume; the objects are listed again.
    Expired,
    /// The watch has failed and resumes after a delay.
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
    /// The objects of `api` that match `field_selector`, or all if it is empty.
    pub fn new(api: Api<K>, field_selector: String) -> Self {
        Self {
            api,
            field_selector,
            watch_seconds: WATCH_SECONDS,
            state: ListWatchState::Unknown,
            listed_from: ListedFrom::Cache,
            not_before: None,
            delay: RetryDelay::new(RETRY_BASE, RETRY_MAX),
            failed: None,
            complaint: None,
            passed_over: None,
        }
    }

    /// Sets the timeout of a watch, to which the random part is added, instead of five minutes.
    #[must_use]
    pub fn with_watch_seconds(mut self, seconds: u32) -> Self {
        self.watch_seconds = seconds;
        self
    }

    /// Requires the first list to be at least of this version, if set.
    #[must_use]
    pub fn since(mut self, version: Option<String>) -> Self {
        self.listed_from = version.map_or(ListedFrom::Cache, ListedFrom::CacheSince);
        self
    }

    /// Returns the next change, and retries after failures. Dropping the future loses no change.
    pub async fn next(&mut self) -> ObjectChange<K> {
        loop {
            if let Ok(change) = self.try_next().await {
                return change;
            }
        }
    }

    /// Like [`Self::next`], but returns on failures.
    ///
    /// # Errors
    /// The server cannot be reached or does not answer. The next call retries after a delay.
    pub async fn try_next(&mut self) -> Result<ObjectChange<K>, ApiError> {
        loop {
            if let Some(at) = self.not_before {
                tokio::time::sleep_until(at).await;
                self.not_before = None;
            }
            match &mut self.state {
                ListWatchState::Unknown => {
                    let params = self.list_params();
                    match ask(self.api.list(&params)).await {
                        Ok(list) => {
                            let version = list.metadata.resource_version.unwrap_or_default();
                            self.listed_from = ListedFrom::CacheSince(version.clone());
                            self.state = ListWatchState::Known(version);
                            self.complaint = None;
                            return Ok(ObjectChange::Replaced(list.items));
                        }
                        // The next list comes from the database, without a delay.
                        Err(error)
                            if self.listed_from != ListedFrom::Database
                                && (error.is_expired() || error.is_version_too_large()) =>
                        {
                            self.listed_from = ListedFrom::Database;
                        }
                        Err(error) => return Err(self.back_off(error)),
                    }
                }
                ListWatchState::Known(version) => {
                    let version = version.clone();
                    self.watch(version).await?;
                }
                ListWatchState::Watching(watching) => match watching.next().await {
                    Step::Changed(change) => return Ok(change),
                    Step::Nothing => {}
                    Step::Unreadable(error) => {
                        // The event comes again with each watch until another event follows it.
                        if self.passed_over.as_ref() != Some(&watching.version) {
                            warn!(
                                resource = self.api.resource_url(), %error,
                                "cannot decode a watch event; skipping it"
                            );
                            self.passed_over = Some(watching.version.clone());
                        }
                    }
                    Step::Ended => {
                        self.state = ListWatchState::Known(std::mem::take(&mut watching.version))
                    }
                    Step::Expired => {
                        let version = std::mem::take(&mut watching.version);
                        self.expired(version);
                    }
                    Step::Failed(error) => {
                        self.state = ListWatchState::Known(std::mem::take(&mut watching.version));
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
        match ask(events(&self.api, &params, &version)).await {
            Ok(events) => {
                let begun = Instant::now();
                self.complaint = None;
                self.state = ListWatchState::Watching(OpenWatch {
                    version,
                    events,
                    kind: PhantomData,
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

    /// The server no longer has the changes since this version. The objects are listed again after
    /// a delay, as the version of that list may be expired too.
    fn expired(&mut self, version: String) {
        debug!(
            resource = self.api.resource_url(),
            "the watched resource version expired; listing again"
        );
        self.state = ListWatchState::Unknown;
        self.listed_from = ListedFrom::CacheSince(version);
        self.wait(None);
    }

    /// Delays the next request after a failure.
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

    /// Delays the next request: at least as long as the server asked for, and at least the
    /// back-off, which doubles each time.
    fn wait(&mut self, wanted: Option<Duration>) {
        let now = Instant::now();
        if self.failed.is_none_or(|last| now - last > RETRY_RESET) {
            self.delay.reset();
        }
        self.failed = Some(now);
        let delay = jittered(self.delay.after_failure());
        self.not_before = Some(now + wanted.map_or(delay, |wanted| delay.max(wanted)));
    }
}

/// Opens a watch from a resource version.
async fn events<K: Resource + Clone>(
    api: &Api<K>,
    params: &WatchParams,
    version: &str,
) -> Result<WatchEvents, kube::Error> {
    let request = Request::new(api.resource_url())
        .watch(params, version)
        .map_err(kube::Error::BuildRequest)?;
    let client = api.clone().into_client();
    Ok(WatchEvents::new(client.request_stream(request).await?))
}

impl<K: Resource + DeserializeOwned> OpenWatch<K> {
    async fn next(&mut self) -> Step<K> {
        let next = tokio::time::timeout_at(self.deadline, self.events.next());
        let line = match next.await {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return failed(kube::Error::ReadEvents(error)),
            Err(_) => return Step::Ended,
        };
        if let Some(step) = line.and_then(|line| self.step(line)) {
            // A server that answers with something else than events is not heard.
            self.heard |= matches!(step, Step::Changed(_) | Step::Nothing);
            return step;
        }
        if !self.heard && self.begun.elapsed() < SHORT_WATCH {
            let cause = std::io::ErrorKind::UnexpectedEof.into();
            return failed(kube::Error::ReadEvents(cause));
        }
        Step::Ended
    }

    /// The result of an event; `None` if the end of the response cut it off.
    fn step(&mut self, line: Line) -> Option<Step<K>> {
        let text = match line.text {
            Ok(text) => text,
            Err(error) => return Some(Step::Unreadable(error)),
        };
        match WatchEvent::parse(&text) {
            Ok(WatchEvent::Updated(object)) => {
                self.reached(&object);
                Some(Step::Changed(ObjectChange::Updated(object)))
            }
            Ok(WatchEvent::Deleted(object)) => {
                self.reached(&object);
                Some(Step::Changed(ObjectChange::Deleted(object)))
            }
            Ok(WatchEvent::Bookmark(version)) => {
                self.version = version;
                Some(Step::Nothing)
            }
            Ok(WatchEvent::Error(status)) => Some(failed(kube::Error::Api(status))),
            Err(error) if error.is_eof() && line.is_last => None,
            Err(error) => Some(match watch_events::bare_status(&text) {
                Some(status) => failed(kube::Error::Api(status)),
                None => Step::Unreadable(error.into()),
            }),
        }
    }

    /// Records the version of an object as known.
    fn reached(&mut self, object: &K) {
        if let Some(version) = &object.meta().resource_version {
            self.version.clone_from(version);
        }
    }
}

/// The result of an error in a watch.
fn failed<K>(error: kube::Error) -> Step<K> {
    match ApiError::from(error) {
        error if error.is_expired() => Step::Expired,
        error => Step::Failed(error),
    }
}

#[cfg(test)]
mod tests;
