//! The upgrade proxy: forwards an exec, attach or port-forward request to the streaming server of a
//! container runtime, and then copies bytes.
//!
//! The proxy does not parse the forwarded bytes, so it works with every protocol and every runtime.
//! It behaves as upstream's `UpgradeAwareHandler` with `UpgradeRequired` set, except that it
//! supports half-closed connections.

mod carry;

use std::{error::Error as _, fmt, pin::pin, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Empty, Full};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::{Body, Bytes, Incoming},
    client::conn::http1,
    header::{self, HeaderName, HeaderValue},
    http::request,
    upgrade::{OnUpgrade, Upgraded},
};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::rustls;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use carry::carry;

use crate::{
    dial::{DialError, Io, dial},
    url,
};

/// The maximum size of a refusal's body. Streaming servers send one line of text.
const REFUSAL_LIMIT: usize = 64 * 1024;
/// A proxy for requests that upgrade their connection.
///
/// Every forwarded connection is a task of the tracker. It ends when both of its directions have
/// ended, or when the token is cancelled.
#[derive(Clone, Debug)]
pub struct Proxy {
    timeouts: ProxyTimeouts,
    tls: Option<Arc<rustls::ClientConfig>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// The timeouts of a [`Proxy`] for a backend, up to the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyTimeouts {
    /// For the connection and the TLS handshake.
    pub connect: Duration,
    /// For the response's head.
    pub answer: Duration,
    /// For the body of a response that refuses the upgrade.
    pub refusal: Duration,
}

/// The reason why a request failed in the proxy.
#[derive(Debug, thiserror::Error)]
enum ProxyError {
    #[error("Upgrade request required")]
    NoUpgrade,
    #[error("an upgrade request with a body is not supported")]
    Body,
    #[error("the request's connection cannot be upgraded")]
    NotUpgradable,
    #[error("proxy to {backend}: the proxy is stopping")]
    Stopping { backend: Backend },
    #[error("proxy to {backend}: {source}")]
    Dial { backend: Backend, source: DialError },
    #[error("proxy to {backend}: connect: timed out after {limit:?}")]
    DialTimeout { backend: Backend, limit: Duration },
    #[error("proxy to {backend}: send the request: {}", reason(source))]
    Request {
        backend: Backend,
        source: hyper::Error,
    },
    #[error("proxy to {backend}: wait for the response: timed out after {limit:?}")]
    AnswerTimeout { backend: Backend, limit: Duration },
    #[error("proxy to {backend}: invalid upgrade response: status code {}", status.as_u16())]
    Answer {
        backend: Backend,
        status: StatusCode,
    },
    #[error("proxy to {backend}: upgrade the connection: {}", reason(source))]
    Upgrade {
        backend: Backend,
        source: hyper::Error,
    },
}

/// The host and port of a streaming server, for errors and logs. The rest of the URL contains a
/// token, which must appear in neither.
#[derive(Clone, Debug)]
struct Backend(String);

/// The response of a backend to an upgrade request.
enum BackendResponse {
    Upgraded(HeaderMap, Upgraded),
    Refused(StatusCode, HeaderMap, Bytes),
}

// === impl Proxy ===

impl Proxy {
    /// Creates a proxy. Its connections are tasks of `tasks`; cancelling `stop` closes them.
    pub fn new(timeouts: ProxyTimeouts, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self {
            timeouts,
            tls: None,
            tasks,
            stop,
        }
    }

    /// Adds a TLS configuration, for https backends.
    pub fn with_tls(mut self, tls: Arc<rustls::ClientConfig>) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sends a request to `backend`, a URL in the form of [`parse_url`](crate::parse_url), and
    /// returns the response for the client.
    ///
    /// Headers are forwarded unchanged, including the client's `Host`, except for `Authorization`,
    /// which is meant for the server that authorized the request. After a 101 response a separate
    /// task forwards the connection until both directions have ended. A refusal (400 and above) is
    /// passed on with the part of its body that arrives in time, up to 64 KiB. If the backend is
    /// unreachable, does not respond or responds with another status, the client gets a 502 with a
    /// message that names the backend.
    ///
    /// The HTTP server of the request must be run with upgrades enabled.
    pub async fn forward<B: Body>(
        &self,
        request: Request<B>,
        backend: &Uri,
    ) -> Response<Full<Bytes>> {
        self.forward_with(request, backend, ()).await
    }

    /// As [`Self::forward`]. `kept` is dropped when the connection ends or is not upgraded.
    pub async fn forward_with<B: Body>(
        &self,
        request: Request<B>,
        backend: &Uri,
        kept: impl Send + 'static,
    ) -> Response<Full<Bytes>> {
        let name = Backend::from(backend);
        let (client, request) = match upgrade_request(request, backend) {
            Ok(parts) => parts,
            Err(error) => return error.into_response(),
        };
        let answer = tokio::select! {
            () = self.stop.cancelled() => Err(ProxyError::Stopping { backend: name.clone() }),
            answer = self.ask(&name, backend, request) => answer,
        };
        match answer {
            Ok(BackendResponse::Upgraded(headers, server)) => {
                let stop = self.stop.clone();
                self.tasks.spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = carry_upgraded(client, server, &name) => {}
                    }
                    drop(kept);
                });
                answer_with(StatusCode::SWITCHING_PROTOCOLS, headers, Bytes::new())
            }
            Ok(BackendResponse::Refused(status, mut headers, body)) => {
                tracing::debug!(backend = %name, %status, "the backend refused an upgrade");
                remove_hop_by_hop(&mut headers);
                close_after(answer_with(status, headers, body))
            }
            Err(error) => {
                tracing::warn!(%error, "a streaming request failed");
                error.into_response()
            }
        }
    }

    async fn ask(
        &self,
        name: &Backend,
        backend: &Uri,
        request: Request<Empty<Bytes>>,
    ) -> Result<BackendResponse, ProxyError> {
        let stream = self.connect(name, backend).await?;
        let failed = |source| ProxyError::Request {
            backend: name.clone(),
            source,
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        let exchange = async {
            let limit = self.timeouts.answer;
            let mut response = timeout(limit, sender.send_request(request))
                .await
                .map_err(|_| ProxyError::AnswerTimeout {
                    backend: name.clone(),
                    limit,
                })?
                .map_err(failed)?;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                let server = hyper::upgrade::on(&mut response).await.map_err(|source| {
                    ProxyError::Upgrade {
                        backend: name.clone(),
                        source,
                    }
                })?;
                return Ok(BackendResponse::Upgraded(
                    response.into_parts().0.headers,
                    server,
                ));
            }
            if status.as_u16() < 400 {
                return Err(ProxyError::Answer {
                    backend: name.clone(),
                    status,
                });
            }
            let (head, body) = response.into_parts();
            let deadline = Instant::now() + self.timeouts.refusal;
            let body = refusal(body, deadline).await;
            Ok(BackendResponse::Refused(status, head.headers, body))
        };
        let mut exchange = pin!(exchange);
        tokio::select! {
            answer = &mut exchange => return answer,
            // The exchange reports the error if the connection failed.
            _ = connection.with_upgrades() => {}
        }
        exchange.await
    }

    async fn connect(&self, name: &Backend, backend: &Uri) -> Result<Box<dyn Io>, ProxyError> {
        let limit = self.timeouts.connect;
        match timeout(limit, dial(backend, self.tls.as_ref())).await {
            Ok(connected) => connected.map_err(|source| ProxyError::Dial {
                backend: name.clone(),
                source,
            }),
            Err(_) => Err(ProxyError::DialTimeout {
                backend: name.clone(),
                limit,
            }),
        }
    }
}

/// Returns the client's side of the upgrade, and the request for `backend`.
fn upgrade_request<B: Body>(
    request: Request<B>,
    backend: &Uri,
) -> Result<(OnUpgrade, Request<Empty<Bytes>>), ProxyError> {
    let asks = request
        .headers()
        .get_all(header::CONNECTION)
        .iter()
        .any(|value| {
            value
                .as_bytes()
                .to_ascii_lowercase()
                .windows(7)
                .any(|at| at == b"upgrade")
        });
    if !asks {
        return Err(ProxyError::NoUpgrade);
    }
    if !request.body().is_end_stream() {
        return Err(ProxyError::Body);
    }
    let (mut head, _) = request.into_parts();
    let client = head
        .extensions
        .remove::<OnUpgrade>()
        .ok_or(ProxyError::NotUpgradable)?;
    Ok((client, rewrite(head, backend)))
}

fn rewrite(head: request::Parts, backend: &Uri) -> Request<Empty<Bytes>> {
    let mut request = Request::new(Empty::new());
    *request.method_mut() = head.method;
    *request.uri_mut() = match backend.path_and_query() {
        Some(path) => Uri::from(path.clone()),
        None => Uri::default(),
    };
    *request.headers_mut() = head.headers;
    let headers = request.headers_mut();
    for name in [
        header::AUTHORIZATION,
        // These describe a body, and the request has none.
        header::TRANSFER_ENCODING,
        header::TRAILER,
    ] {
        headers.remove(name);
    }
    if let (false, Some(authority)) = (headers.contains_key(header::HOST), backend.authority())
        && let Ok(host) = HeaderValue::from_str(authority.as_str())
    {
        headers.insert(header::HOST, host);
    }
    request
}

/// Reads a body until `deadline`, up to the size limit.
async fn refusal(mut body: Incoming, deadline: Instant) -> Bytes {
    let mut text = Vec::new();
    while text.len() < REFUSAL_LIMIT {
        match timeout_at(deadline, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    let room = data.len().min(REFUSAL_LIMIT - text.len());
                    text.extend_from_slice(&data[..room]);
                }
            }
            Ok(Some(Err(_)) | None) | Err(_) => break,
        }
    }
    text.into()
}

/// Removes the headers that are only for the connection between the backend and this proxy.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.into_iter().chain([
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        header::TRAILER,
        // The body may be truncated, so its length is set again.
        header::CONTENT_LENGTH,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ]) {
        headers.remove(name);
    }
}

fn answer_with(status: StatusCode, headers: HeaderMap, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Closes the connection after the response: the client may have sent bytes of the requested
/// protocol after its request, and they must not be parsed as the next request.
fn close_after(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response
        .headers_mut()
        .insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

async fn carry_upgraded(client: OnUpgrade, server: Upgraded, name: &Backend) {
    let client = match client.await {
        Ok(client) => client,
        Err(error) => {
            tracing::debug!(backend = %name, %error, "a client disconnected before its upgrade");
            return;
        }
    };
    match carry(TokioIo::new(client), TokioIo::new(server)).await {
        Ok(()) => tracing::debug!(backend = %name, "a streaming connection ended"),
        Err(error) => tracing::debug!(backend = %name, %error, "a streaming connection failed"),
    }
}

// === impl ProxyTimeouts ===

impl Default for ProxyTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            refusal: Duration::from_secs(10),
        }
    }
}

// === impl ProxyError ===

impl ProxyError {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoUpgrade | Self::Body => StatusCode::BAD_REQUEST,
            Self::NotUpgradable => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Stopping { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Dial { .. }
            | Self::DialTimeout { .. }
            | Self::Request { .. }
            | Self::AnswerTimeout { .. }
            | Self::Answer { .. }
            | Self::Upgrade { .. } => StatusCode::BAD_GATEWAY,
        }
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let headers = HeaderMap::from_iter([(
            header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        )]);
        close_after(answer_with(
            self.status(),
            headers,
            format!("{self}\n").into(),
        ))
    }
}

/// Formats an error with its cause, which hyper's own message omits.
fn reason(error: &hyper::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

// === impl Backend ===

impl From<&Uri> for Backend {
    fn from(uri: &Uri) -> Self {
        if let Some(socket) = url::socket_of(uri) {
            return Self(format!("unix://{socket}"));
        }
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        // The authority may start with a user and password, which are left out.
        let host = authority.rsplit('@').next().unwrap_or_default();
        match (uri.scheme_str(), host) {
            (_, "") => Self("an address without a host".into()),
            (Some("http") | None, host) => Self(host.to_owned()),
            (Some(scheme), host) => Self(format!("{scheme}://{host}")),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn a_backend_is_named_without_its_token_or_credentials() {
        for (url, name) in [
            ("http://127.0.0.1:1234/exec/token?x=y", "127.0.0.1:1234"),
            ("http://user:secret@[::1]:80/exec/token", "[::1]:80"),
            ("https://node:1/exec/token", "https://node:1"),
            ("unix://2f61:0/exec/token", "unix:///a"),
            ("/exec/token", "an address without a host"),
        ] {
            let uri: Uri = url.parse().unwrap();
            assert_eq!(Backend::from(&uri).to_string(), name);
        }
    }

    #[test]
    fn headers_between_two_neighbours_stay_there() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/plain"),
            ("x-end", "2"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove_hop_by_hop(&mut headers);
        let left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left, ["content-type", "x-end"]);
    }
}
