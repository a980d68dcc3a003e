//! Connections, and what one client can take of the kubelet.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::Response,
    serve::Listener,
};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    sync::Semaphore,
    time,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;
use tracing::debug;

use super::{
    access::Access,
    authentication::websocket_protocol::remove_tokens,
    metrics::{HttpMetrics, ServerType},
    strangers::{Client, Origin, Strangers},
    tls::{PeerCertificates, Tls},
};

/// Headers of a request.
const HEADERS: usize = 256;
/// How long a client that is to be let in may take for its first request.
const FIRST_HEAD: Duration = Duration::from_secs(10);
/// Of all connections, one in so many may be of strangers from the same address.
const STRANGERS_SHARE: usize = 8;
/// How long the last request of a connection may take after its time.
const FAREWELL: Duration = Duration::from_secs(5);

/// Between two signs of life that an idle client is asked for, as Go's servers.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What the clients of a server can take of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections at the same time; more wait in the backlog.
    connections: usize,
    /// Bytes of a request's head. Bodies are read by nobody who does not limit them.
    head_bytes: usize,
    /// How long a request's head may take, idling between requests included.
    head_time: Duration,
    /// How long a connection may last.
    lifetime: Duration,
}

impl Limits {
    /// Where anybody may connect, so that nobody holds a connection by reading slowly.
    pub(super) const OPEN: Self = Self {
        connections: 64,
        head_bytes: 16 * 1024,
        head_time: Duration::from_secs(30),
        lifetime: Duration::from_secs(300),
    };
    /// On the socket: a log may be followed for as long as its container runs.
    pub(super) const SOCKET: Self = Self {
        lifetime: Duration::MAX,
        ..Self::OPEN
    };
    /// On the secure port, where commands come as parts of paths, and the API server holds
    /// a connection for each log that is followed. A connection idles as long as upstream
    /// lets it.
    pub(super) const SECURE: Self = Self {
        connections: 1024,
        head_bytes: 128 * 1024,
        head_time: Duration::from_secs(90),
        lifetime: Duration::from_secs(4 * 3600),
    };
}

/// What is served on a listener, and to whom.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) routes: Router,
    pub(super) limits: Limits,
    /// For the secure port: its TLS, and who is let in.
    pub(super) guard: Option<(Arc<Tls>, Arc<Access>)>,
    /// Where its requests are counted, and as what.
    pub(super) counted: Option<(Arc<HttpMetrics>, ServerType)>,
}

impl Service {
    pub(super) const fn open(routes: Router, limits: Limits) -> Self {
        Self {
            routes,
            limits,
            guard: None,
            counted: None,
        }
    }

    /// The same, with its requests counted as those of the read-only API.
    pub(super) fn counted(mut self, metrics: Arc<HttpMetrics>) -> Self {
        self.counted = Some((metrics, ServerType::ReadOnly));
        self
    }
}

/// Serves whoever connects, until `cancel`.
pub(super) async fn serve<L>(mut listener: L, service: Service, cancel: CancellationToken)
where
    L: Listener<Addr: Origin>,
{
    let connections = TaskTracker::new();
    let strangers = Arc::<Strangers>::default();
    let slots = Arc::new(Semaphore::new(service.limits.connections));
    loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, (stream, address)) = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            next = next => next,
        };
        // Where everybody is let in there are none.
        let client = match address.ip().filter(|_| service.guard.is_some()) {
            None => None,
            Some(ip) => {
                let most = service.limits.connections / STRANGERS_SHARE;
                let Some(client) = strangers.client(ip, most) else {
                    debug!(%ip, "Too many connections of strangers");
                    continue;
                };
                Some(Arc::new(client))
            }
        };
        let (service, cancel) = (service.clone(), cancel.clone());
        connections.spawn(async move {
            serve_stream(stream, service, client, cancel).await;
            drop(slot);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Keystrokes do not wait for more, and a client whose machine or network is gone is
/// found out, as Go's servers do.
pub(super) fn keep_alive(socket: &mut TcpStream) {
    let _ = socket.set_nodelay(true);
    let set = set_socket_keepalive(&*socket, true)
        .and_then(|()| set_tcp_keepidle(&*socket, KEEP_ALIVE))
        .and_then(|()| set_tcp_keepintvl(&*socket, KEEP_ALIVE));
    if let Err(error) = set {
        debug!(%error, "A connection without keep-alive");
    }
}

async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    client: Option<Arc<Client>>,
    cancel: CancellationToken,
) {
    let Some((tls, _)) = &service.guard else {
        let nobody = PeerCertificates::default();
        return serve_connection(stream, service, nobody, client, cancel).await;
    };
    let tls = Arc::clone(tls);
    match cancel.run_until_cancelled(tls.accept(stream)).await {
        Some(Ok((stream, peer))) => {
            serve_connection(stream, service, peer, client, cancel).await;
        }
        Some(Err(error)) => debug!(%error, "TLS handshake error"),
        None => {}
    }
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    peer: PeerCertificates,
    client: Option<Arc<Client>>,
    cancel: CancellationToken,
) {
    let Limits {
        head_bytes,
        head_time,
        lifetime,
        ..
    } = service.limits;
    let asking = client.clone();
    let answer = service_fn(move |request| {
        let (service, peer, client) = (service.clone(), peer.clone(), asking.clone());
        async move { answer(request, service, peer, client).await }
    });
    let stays_silent = async {
        time::sleep(FIRST_HEAD).await;
        if client.is_none_or(|client| client.has_asked()) {
            std::future::pending::<()>().await;
        }
    };
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(head_time)
            .max_buf_size(head_bytes)
            .max_headers(HEADERS)
            .serve_connection(TokioIo::new(stream), answer)
            .with_upgrades()
    );
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        () = cancel.cancelled() => None,
        () = time::sleep(lifetime) => None,
        () = stays_silent => return,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            time::timeout(FAREWELL, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "A connection ended early");
    }
}

/// Counts a request, where it is to be, and answers it.
async fn answer(
    request: Request<Incoming>,
    service: Service,
    peer: PeerCertificates,
    client: Option<Arc<Client>>,
) -> Result<Response, std::convert::Infallible> {
    if let Some(client) = &client {
        client.asks();
    }
    let serving = service
        .counted
        .as_ref()
        .map(|(metrics, server)| metrics.begin(&request, *server));
    let answer = answer_who_is_let_in(request, service, peer, client).await?;
    Ok(match serving {
        Some(serving) => serving.until_read(answer),
        None => answer,
    })
}

/// Nothing is routed before it is let in: there is no way around it.
async fn answer_who_is_let_in(
    request: Request<Incoming>,
    service: Service,
    peer: PeerCertificates,
    client: Option<Arc<Client>>,
) -> Result<Response, std::convert::Infallible> {
    let (mut head, body) = request.into_parts();
    if let Some((_, access)) = &service.guard
        && let Err(mut refusal) = access.check(&head, &peer).await
    {
        // A stranger has one attempt, and makes room for others.
        if client.is_some_and(|client| !client.was_let_in()) {
            let headers = refusal.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        return Ok(*refusal);
    }
    if let Some(client) = &client {
        client.let_in();
    }
    // They were for this door alone.
    remove_tokens(&mut head.headers);
    let request = Request::from_parts(head, Body::new(body));
    service.routes.oneshot(request).await
}
