//! The HTTP transport of all requests to the API server. It adds the user's credentials.
//!
//! Over HTTP/2, requests and watches share one connection up to the number of concurrent streams
//! that API servers allow. Further requests use another connection, so that a node with many
//! watches can still renew its lease.

use std::{
    fmt, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming, SizeHint},
};
use hyper_util::{
    client::legacy::Client,
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::Body;
use kubelet_traces::{answered, client_request, traced};
use parking_lot::Mutex;
use tokio::time;
use tower::{BoxError, Service};
use tracing::{info, warn};

use super::{
    connection::Connector, credentials::Credentials, identity::ClientIdentity, metrics::RestMetrics,
};

/// API servers allow 100 concurrent streams per connection; some may be half closed.
const STREAMS: usize = 90;
/// How long a request waits for the first client certificate. Shorter than the default deadline of
/// a request.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(8);
/// A ping is sent after this long without a received frame, as in Go's client.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// The connection is dead if a ping is not answered within this time, as in Go's client.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// How long an unused connection stays open, as in Go's client.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// The transport to the API server. Clones are cheap and share their state.
#[derive(Clone)]
pub(super) struct Transport(Arc<TransportInner>);

struct TransportInner {
    url: String,
    connector: Connector,
    credentials: Credentials,
    identity: Arc<ClientIdentity>,
    metrics: Arc<RestMetrics>,
    pool: Mutex<Vec<PooledClient>>,
    reachability: Mutex<Reachability>,
}

/// Reachability of the API server.
#[derive(Debug, Default)]
struct Reachability {
    is_away: bool,
    /// The number of responses so far.
    answers: u64,
}

impl Reachability {
    /// Records that a request failed to reach the server. `begun` is the number of responses when
    /// the request started. Returns whether the server has become unreachable; it has not if
    /// another request was answered in the meantime.
    fn failed(&mut self, begun: u64) -> bool {
        begun == self.answers && !mem::replace(&mut self.is_away, true)
    }

    /// Records a response. Returns whether the server has become reachable.
    fn answered(&mut self) -> bool {
        self.answers += 1;
        mem::take(&mut self.is_away)
    }
}

/// A client with a single connection, if it uses HTTP/2.
struct PooledClient {
    client: Client<Connector, Body>,
    /// Each request holds a reference until its response is read.
    requests: Arc<()>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport")
            .field("url", &self.0.url)
            .finish_non_exhaustive()
    }
}

impl Transport {
    pub(super) fn new(
        url: String,
        connector: Connector,
        credentials: Credentials,
        identity: Arc<ClientIdentity>,
        metrics: Arc<RestMetrics>,
    ) -> Self {
        Self(Arc::new(TransportInner {
            url,
            connector,
            credentials,
            identity,
            metrics,
            pool: Mutex::default(),
            reachability: Mutex::default(),
        }))
    }

    /// Whether the API server was unreachable at the last request.
    pub(super) fn is_away(&self) -> bool {
        self.0.reachability.lock().is_away
    }

    /// The metrics of the requests.
    pub(super) fn metrics(&self) -> &Arc<RestMetrics> {
        &self.0.metrics
    }
}

impl TransportInner {
    /// The first client with room for another request.
    fn pooled_client(&self) -> (Client<Connector, Body>, Arc<()>) {
        let mut pool = self.pool.lock();
        let free = pool
            .iter()
            // The pool itself holds one reference.
            .position(|pooled_client| Arc::strong_count(&pooled_client.requests) <= STREAMS);
        let at = free.unwrap_or_else(|| {
            pool.push(PooledClient {
                client: Client::builder(TokioExecutor::new())
                    .timer(TokioTimer::new())
                    .pool_timer(TokioTimer::new())
                    .pool_idle_timeout(IDLE_TIMEOUT)
                    .http2_keep_alive_interval(PING_INTERVAL)
                    .http2_keep_alive_timeout(PING_TIMEOUT)
                    .http2_keep_alive_while_idle(true)
                    .build(self.connector.clone()),
                requests: Arc::new(()),
            });
            pool.len() - 1
        });
        (pool[at].client.clone(), Arc::clone(&pool[at].requests))
    }

    /// Logs when the API server becomes unreachable and when it is reachable again.
    fn note(&self, begun: u64, failure: Option<&dyn std::error::Error>) {
        let is_news = match failure {
            Some(_) => self.reachability.lock().failed(begun),
            None => self.reachability.lock().answered(),
        };
        match failure {
            Some(error) if is_news => warn!(
                server = self.url,
                error = causes(error),
                "cannot reach the API server; retrying"
            ),
            None if is_news => info!(server = self.url, "the API server is reachable again"),
            _ => {}
        }
    }
}

fn causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {}", causes(source)),
        None => error.to_string(),
    }
}

impl Service<Request<Body>> for Transport {
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let parts = Arc::clone(&self.0);
        let span = client_request(&mut request);
        let of_answer = span.clone();
        let answer = async move {
            let settled = parts.identity.settled();
            if time::timeout(IDENTITY_TIMEOUT, settled).await.is_err() {
                return Err("this node has no client certificate yet".into());
            }
            let answers = parts.reachability.lock().answers;
            let added = parts.credentials.add_to(request.headers_mut()).await;
            let token = added.inspect_err(|error| parts.note(answers, Some(error)))?;
            let (client, request_count) = parts.pooled_client();
            let mut timer = RequestTimer {
                metrics: &parts.metrics,
                method: request.method().clone(),
                begun: time::Instant::now(),
                status: None,
            };
            let answer = client.request(request).await;
            timer.status = answer.as_ref().ok().map(Response::status);
            drop(timer);
            parts.note(answers, answer.as_ref().err().map(|error| error as _));
            let answer = answer?;
            if answer.status() == StatusCode::UNAUTHORIZED {
                parts.credentials.refused(token.as_ref()).await;
            }
            answered(&of_answer, answer.status());
            Ok(answer.map(|body| ResponseBody {
                body,
                _request: request_count,
            }))
        };
        Box::pin(traced(span, answer))
    }
}

/// Counts a request when dropped, even if it was cancelled before a response.
struct RequestTimer<'a> {
    metrics: &'a RestMetrics,
    method: Method,
    begun: time::Instant,
    status: Option<StatusCode>,
}

impl Drop for RequestTimer<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        self.metrics.answered(&self.method, self.status, took);
    }
}

/// A response body. It occupies a stream of its connection until it is dropped.
pub(super) struct ResponseBody {
    body: Incoming,
    _request: Arc<()>,
}

impl hyper::body::Body for ResponseBody {
    type Data = bytes::Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_news_once() {
        let mut reachability = Reachability::default();
        assert!(!reachability.answered());
        let (early, late) = (reachability.answers, reachability.answers);
        assert!(reachability.failed(early));
        assert!(!reachability.failed(early));
        assert!(reachability.answered());
        assert!(!reachability.answered());
        // A request that started during the outage fails after its end.
        assert!(!reachability.failed(late));
        assert!(!reachability.answered());
        let next = reachability.answers;
        assert!(reachability.failed(next));
    }
}
