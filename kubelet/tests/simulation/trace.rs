//! The trace of a run: every call with its answer, and every change of a status, in order.

use std::{
    convert::Infallible,
    path::Path,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http_body_util::{BodyExt as _, Full};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::{
    body::Body,
    codegen::{Service, http},
};

/// One entry of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    /// Microseconds since the start, by the run's own clock.
    at: u128,
    what: String,
    digest: u64,
}

/// The trace so far. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    entries: Arc<Mutex<Vec<Entry>>>,
    begun: Instant,
    /// The node's directory; its name differs in each run.
    dir: Arc<str>,
}

impl Trace {
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            entries: Arc::default(),
            begun: Instant::now(),
            dir: Arc::from(dir.to_str().unwrap()),
        }
    }

    pub(crate) fn note(&self, what: impl Into<String>, detail: &[u8]) {
        self.entries.lock().push(Entry {
            at: self.begun.elapsed().as_micros(),
            what: what.into(),
            digest: digest(
                String::from_utf8_lossy(detail)
                    .replace(&*self.dir, "")
                    .as_bytes(),
            ),
        });
    }

    /// When the run began.
    pub(crate) const fn begun(&self) -> Instant {
        self.begun
    }

    /// The time from the start to the last entry.
    pub(crate) fn duration(&self) -> Duration {
        let micros = self.entries.lock().last().map_or(0, |entry| entry.at);
        Duration::from_micros(u64::try_from(micros).unwrap())
    }

    /// How often an entry with this text occurs.
    pub(crate) fn count(&self, what: &str) -> usize {
        let entries = self.entries.lock();
        entries.iter().filter(|entry| entry.what == what).count()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }

    pub(crate) fn digest(&self) -> u64 {
        let entries = self.entries.lock();
        let all = entries.iter().map(|entry| format!("{entry:?}"));
        digest(all.collect::<String>().as_bytes())
    }

    /// The entries that contain a text, for people.
    pub(crate) fn about(&self, text: &str) -> String {
        let entries = self.entries.lock();
        let about = entries.iter().filter(|entry| entry.what.contains(text));
        let lines = about.map(|entry| format!("{:>9} ms {}\n", entry.at / 1000, entry.what));
        lines.collect()
    }

    pub(crate) fn assert_same(&self, other: &Self) {
        let (ours, theirs) = (self.entries.lock(), other.entries.lock());
        let differs = (0..ours.len().max(theirs.len())).find(|i| ours.get(*i) != theirs.get(*i));
        let Some(first) = differs else {
            return;
        };
        let around = first.saturating_sub(8)..first + 3;
        let show = |entries: &[Entry]| {
            let part = &entries[around.start.min(entries.len())..around.end.min(entries.len())];
            part.iter()
                .map(|entry| format!("{entry:?}\n"))
                .collect::<String>()
        };
        panic!(
            "two runs of one seed differ from entry {first} on:\n{}\n{}",
            show(&ours),
            show(&theirs)
        );
    }
}

/// FNV-1a over words of eight bytes.
fn digest(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word))
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(29)
    })
}

/// A service whose calls and answers are recorded.
#[derive(Clone)]
pub(crate) struct Traced<S> {
    pub service: S,
    pub trace: Trace,
}

impl<S> Service<http::Request<Body>> for Traced<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { mut service, trace } = self.clone();
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let verb = head
                .uri
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            let body = body.collect().await.unwrap().to_bytes();
            trace.note(verb.clone(), &body);
            let request = http::Request::from_parts(head, Body::new(Full::new(body)));
            let response = service.call(request).await?;
            if verb == "GetContainerEvents" {
                return Ok(response);
            }
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap();
            let trailers = body.trailers().cloned();
            let body = body.to_bytes();
            let code = head
                .headers
                .get("grpc-status")
                .or(trailers.as_ref().and_then(|t| t.get("grpc-status")));
            // Only the length: lists are long and frequent, and other answers contain their
            // details.
            let detail = if verb.starts_with("List") {
                body.len().to_le_bytes().to_vec()
            } else {
                body.to_vec()
            };
            trace.note(format!("{verb} answered {code:?}"), &detail);
            let body = Full::new(body).with_trailers(async move { trailers.map(Ok) });
            Ok(http::Response::from_parts(head, Body::new(body)))
        })
    }
}
