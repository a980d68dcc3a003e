//! Connections, and limits on what a single client can use.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::Response,
    serve::Listener,
};
use cri_streaming::connections::{
    ConnectionLimiter, ConnectionLimits, ConnectionSlot, RequestGuard,
};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kubelet_traces::{answered, server_request};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, unix},
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;
use tracing::{Instrument as _, Span, debug};

use super::{
    access::AccessControl,
    authentication::websocket_protocol::remove_tokens,
    body_guard::attach_to_body,
    flush_before_end::{FlushCounting, flush_before_end},
    long_query::{FirstRequest, LongQueries},
    metrics::{HttpMetrics, ServerType, route},
    tls::{PeerCertificates, Tls},
};

/// Maximum number of headers in a request.
const HEADERS: usize = 256;
/// Deadline of the first request on a connection, including the TLS handshake: until then the
/// client is unknown.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// Grace period of the request in flight when the connection's lifetime ends or the server stops.
const FAREWELL: Duration = Duration::from_secs(5);

/// Idle time and interval of TCP keep-alive probes, as in Go's servers.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Limits on the clients of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of a request's head. Handlers that read a body limit it themselves.
    head_bytes: usize,
    /// Deadline of a request's head, including the idle time before it.
    head_time: Duration,
    /// Maximum age of a connection. A request that is in flight then has as much time again.
    lifetime: Duration,
}

/// Capacity of the servers without access control.
pub(super) const OPEN_ROOM: ConnectionLimits = ConnectionLimits::open(64);
/// Maximum number of connections on the secure port.
const SECURE_CONNECTIONS: usize = 1024;
/// Open files that are set aside for each connection of the secure port: those that it leads to,
/// and those of upgraded connections, which no longer count as connections.
const SECURE_FILES: usize = 8;

/// Capacity of the secure port.
pub(super) fn secure_room() -> ConnectionLimits {
    ConnectionLimits::within_open_files(SECURE_CONNECTIONS, SECURE_FILES)
}

impl Limits {
    /// For servers without access control. The lifetime keeps slow readers from holding
    /// connections.
    pub(super) const OPEN: Self = Self {
        head_bytes: 16 * 1024,
        head_time: Duration::from_secs(30),
        lifetime: Duration::from_secs(300),
    };
    /// For the unix socket: a log may be followed as long as its container runs.
    pub(super) const SOCKET: Self = Self {
        lifetime: Duration::MAX,
        ..Self::OPEN
    };
    /// For the secure port. Commands are part of the URL, and the API server holds a connection for
    /// each followed log. The idle time is upstream's.
    pub(super) const SECURE: Self = Self {
        head_bytes: 128 * 1024,
        head_time: Duration::from_secs(90),
        lifetime: Duration::from_secs(4 * 3600),
    };
}

/// The routes of a listener, with limits and access control.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) routes: Router,
    pub(super) limits: Limits,
    pub(super) places: Arc<ConnectionLimiter>,
    /// TLS and access control, on the secure port.
    pub(super) guard: Option<(Arc<Tls>, Arc<AccessControl>)>,
    /// Admits commands that are longer than a URI can be.
    pub(super) long_queries: Option<LongQueries>,
    /// Request metrics, and the server type to count requests under.
    pub(super) counted: Option<(Arc<HttpMetrics>, ServerType)>,
}

impl Service {
    pub(super) const fn open(
        routes: Router,
        limits: Limits,
        places: Arc<ConnectionLimiter>,
    ) -> Self {
        Self {
            routes,
            limits,
            places,
            guard: None,
            long_queries: None,
            counted: None,
        }
    }

    /// Counts requests as requests to the read-only API.
    pub(super) fn counted(mut self, metrics: Arc<HttpMetrics>) -> Self {
        self.counted = Some((metrics, ServerType::ReadOnly));
        self
    }
}

/// The origin of a connection.
pub(super) trait Origin {
    /// The IP address; `None` for unix sockets.
    fn ip(&self) -> Option<IpAddr>;
}

impl Origin for SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        Some(Self::ip(self))
    }
}

impl Origin for unix::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        None
    }
}

/// Serves connections until `cancel`, then waits for them to end.
pub(super) async fn serve<L>(mut listener: L, service: Service, cancel: CancellationToken)
where
    L: Listener<Addr: Origin>,
{
    let connections = TaskTracker::new();
    let places = Arc::clone(&service.places);
    loop {
        let next = async {
            places.wait_for_slot().await;
            listener.accept().await
        };
        let (stream, address) = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            next = next => next,
        };
        let place = Arc::new(places.admit(address.ip()));
        let (service, cancel) = (service.clone(), cancel.clone());
        connections.spawn(async move {
            tokio::select! {
                biased;
                () = serve_stream(stream, service, &place, cancel) => {}
                () = place.evicted() => {
                    debug!(address = ?place.address(), "closed a connection to make room for another");
                }
                () = place.first_request_timeout(FIRST_REQUEST) => {
                    debug!(address = ?place.address(), "closed a connection that sent no request");
                }
            }
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Disables Nagle's algorithm, so that keystrokes are sent at once, and enables keep-alive, which
/// detects dead peers, as Go's servers do.
pub(super) fn keep_alive(socket: &mut TcpStream) {
    let _ = socket.set_nodelay(true);
    let set = set_socket_keepalive(&*socket, true)
        .and_then(|()| set_tcp_keepidle(&*socket, KEEP_ALIVE))
        .and_then(|()| set_tcp_keepintvl(&*socket, KEEP_ALIVE));
    if let Err(error) = set {
        debug!(%error, "cannot enable TCP keep-alive");
    }
}

async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    place: &Arc<ConnectionSlot>,
    cancel: CancellationToken,
) {
    let Some((tls, _)) = &service.guard else {
        let nobody = PeerCertificates::default();
        return serve_connection(stream, service, nobody, place, cancel).await;
    };
    let tls = Arc::clone(tls);
    match cancel.run_until_cancelled(tls.accept(stream)).await {
        Some(Ok((stream, peer))) => {
            serve_connection(stream, service, peer, place, cancel).await;
        }
        Some(Err(error)) => debug!(%error, "TLS handshake error"),
        None => {}
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    peer: PeerCertificates,
    place: &Arc<ConnectionSlot>,
    cancel: CancellationToken,
) {
    let Limits {
        head_bytes,
        head_time,
        lifetime,
        ..
    } = service.limits;
    let (stream, first_query) = FirstRequest::new(stream, service.long_queries.as_ref());
    let (stream, flushes) = FlushCounting::new(stream);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        let (service, peer, place) = (service.clone(), peer.clone(), Arc::clone(place));
        if let Some(query) = first_query.lock().take() {
            request.extensions_mut().insert(Arc::new(query));
        }
        let flushes = Arc::clone(&flushes);
        async move {
            let answer = answer(request, service, peer, place).await?;
            Ok::<_, std::convert::Infallible>(flush_before_end(answer, &flushes))
        }
    });
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_time)
            .max_buf_size(head_bytes)
            .max_headers(HEADERS)
            .serve_connection(TokioIo::new(stream), answer)
            .with_upgrades()
    );
    let mut ended = cancel
        .run_until_cancelled(time::timeout(lifetime, connection.as_mut()))
        .await;
    if matches!(ended, Some(Err(_))) {
        // The request in flight may have begun only now.
        connection.as_mut().graceful_shutdown();
        let last = time::timeout(lifetime, connection.as_mut());
        ended = cancel.run_until_cancelled(last).await;
    }
    let ended = match ended {
        Some(Ok(ended)) => ended,
        Some(Err(_)) => Ok(()),
        None => {
            connection.as_mut().graceful_shutdown();
            time::timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended with an error");
    }
}

/// Answers a request, and counts it if the service has metrics.
async fn answer(
    mut request: Request<Incoming>,
    service: Service,
    peer: PeerCertificates,
    place: Arc<ConnectionSlot>,
) -> Result<Response, std::convert::Infallible> {
    place.note_request();
    let serving = service
        .counted
        .as_ref()
        .map(|(metrics, server)| Arc::new(metrics.begin(&request, *server)));
    if let Some(serving) = &serving {
        // A request that becomes a stream is in flight until that ends.
        request.extensions_mut().insert(Arc::clone(serving));
    }
    let (answer, busy) = answer_who_is_let_in(request, service, peer, place).await?;
    Ok(attach_to_body(answer, (busy, serving)))
}

/// Checks access before routing, so that no route can bypass it.
async fn answer_who_is_let_in(
    request: Request<Incoming>,
    service: Service,
    peer: PeerCertificates,
    place: Arc<ConnectionSlot>,
) -> Result<(Response, Option<RequestGuard>), std::convert::Infallible> {
    let (mut head, body) = request.into_parts();
    if let Some((_, access)) = &service.guard
        && let Err(mut refusal) = access.check(&head, &peer, place.address()).await
    {
        // A client that was never authorized gets one attempt; closing its connection makes room
        // for others.
        if place.is_unauthenticated() {
            let headers = refusal.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        return Ok((*refusal, None));
    }
    let busy = place.mark_authenticated();
    // They are for authentication only.
    remove_tokens(&mut head.headers);
    let request = Request::from_parts(head, Body::new(body));
    // Clients that the secure port admits may decide what is traced.
    let is_trusted = service.guard.is_some();
    let span = match service.counted {
        Some(_) => server_request(&request, route(request.uri().path()), is_trusted),
        None => Span::none(),
    };
    let answer = service.routes.oneshot(request);
    let answer = answer.instrument(span.clone()).await?;
    answered(&span, answer.status());
    Ok((answer, Some(busy)))
}

#[cfg(test)]
mod tests;
