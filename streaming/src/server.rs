//! The streaming server: serves HTTP until a connection is upgraded, then runs its session.

use std::{
    convert::Infallible,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use hyper::{
    Method, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, rustls};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Attach, Exec, Runtime,
    bound::Bound,
    connections::{ConnectionLimiter, ConnectionLimits, ConnectionSlot},
    handshake::{self, HandshakeResponse},
    negotiated_session::{CommandRequest, NegotiatedSession, SessionTimeouts},
    token::{TokenCache, TokenError},
};

/// The default idle timeout of a connection, as upstream.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(4 * 3600);
/// The default deadline for a client's request, and then for the creation of its streams, as
/// upstream.
pub const CREATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The interval of TCP keep-alive probes.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The upper limit of the deadline for a client's request, including the TLS handshake. The client
/// is not authenticated yet.
const FIRST_REQUEST: Duration = Duration::from_secs(10);
/// The default limit on concurrent connections.
pub const MOST_CONNECTIONS: usize = 4096;
/// File descriptors that a connection may use, including its own: the engine's side of a command, a
/// connection for each forwarded port.
const FILES: usize = 4;
/// The maximum size of a request, including all headers.
const LONGEST_REQUEST: usize = 64 * 1024;
/// The delay after a failed accept, for example when the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The configuration of a [`Server`].
#[derive(Clone, Debug)]
pub struct Config {
    /// The address to listen on. With port 0 the system chooses a port.
    pub bind: SocketAddr,
    /// The prefix of every path, such as "/" or "/cri/".
    pub base_path: String,
    /// The time without data after which a connection is closed.
    pub idle_timeout: Duration,
    /// The deadline for a client's request (at most 10 s), and then for the creation of its
    /// streams.
    pub creation_timeout: Duration,
    /// The TLS configuration; without one, the server speaks plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// The limit on concurrent connections, including running sessions. It is lowered if the
    /// process may not open enough files for it. See [`crate::connections`].
    pub connections: usize,
}

/// The reason why the server failed to start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Listening on the address failed.
    #[error("listen for streams on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

/// A server of a runtime's streams. Clients authenticate with a token.
#[derive(Debug)]
pub struct Server<R> {
    runtime: Arc<R>,
    config: Config,
    /// `None` once the server is running.
    listener: parking_lot::Mutex<Option<TcpListener>>,
    /// The URL for clients on this machine: scheme, address and base path, without a trailing
    /// slash.
    base_url: String,
    requests: TokenCache<PendingRequest>,
    limiter: Arc<ConnectionLimiter>,
    sessions: TaskTracker,
    stop: CancellationToken,
}

/// The request that a token stands for.
#[derive(Debug)]
enum PendingRequest {
    Exec(Exec),
    Attach(Attach),
    PortForward(String, Vec<u16>),
}

// === impl Config ===

impl Config {
    /// Creates a configuration for `bind` with upstream's defaults, without TLS.
    pub fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            base_path: "/".into(),
            idle_timeout: IDLE_TIMEOUT,
            creation_timeout: CREATION_TIMEOUT,
            tls: None,
            connections: MOST_CONNECTIONS,
        }
    }
}

// === impl Server ===

impl<R: Runtime> Server<R> {
    /// Starts to listen. Tokens can be issued from now on; [`Server::serve`] serves them.
    ///
    /// # Errors
    /// [`ServerError::Listen`].
    pub async fn bind(config: Config, runtime: Arc<R>) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen {
            address: config.bind,
            source,
        };
        let listener = TcpListener::bind(config.bind).await.map_err(failed)?;
        let address = reachable(listener.local_addr().map_err(failed)?);
        let scheme = if config.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let path = config.base_path.trim_matches('/');
        let base_url = match path {
            "" => format!("{scheme}://{address}"),
            path => format!("{scheme}://{address}/{path}"),
        };
        let limits = ConnectionLimits::within_open_files(config.connections, FILES);
        Ok(Self {
            runtime,
            config,
            listener: parking_lot::Mutex::new(Some(listener)),
            base_url,
            requests: TokenCache::new(),
            limiter: ConnectionLimiter::new("streaming", limits),
            sessions: TaskTracker::new(),
            stop: CancellationToken::new(),
        })
    }

    /// The URL of the server for clients on this machine: scheme, address and base path, without a
    /// trailing slash.
    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The number of running client sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// The limits on connections and on unused tokens.
    pub fn bounds(&self) -> [Arc<Bound>; 4] {
        let [connections, unauthenticated, of_address] = self.limiter.bounds();
        [
            connections,
            unauthenticated,
            of_address,
            self.requests.bound(),
        ]
    }

    /// Prepares a command. A client gets its streams from the returned URL, once and within a
    /// minute.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn exec(&self, exec: Exec) -> Result<String, TokenError> {
        self.prepare("exec", PendingRequest::Exec(exec))
    }

    /// Prepares to attach to a container; otherwise as [`Server::exec`].
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn attach(&self, attach: Attach) -> Result<String, TokenError> {
        self.prepare("attach", PendingRequest::Attach(attach))
    }

    /// Prepares a port-forward; otherwise as [`Server::exec`]. `ports` is only for clients of the
    /// older WebSocket protocol; other clients send the ports later.
    ///
    /// # Errors
    /// [`TokenError`].
    pub fn port_forward(&self, sandbox_id: String, ports: Vec<u16>) -> Result<String, TokenError> {
        self.prepare(
            "portforward",
            PendingRequest::PortForward(sandbox_id, ports),
        )
    }

    fn prepare(&self, verb: &str, request: PendingRequest) -> Result<String, TokenError> {
        let token = self.requests.insert(request)?;
        Ok(format!("{}/{verb}/{token}", self.base_url))
    }

    /// Serves until `stop` is cancelled, then closes all sessions and waits for the runtime to
    /// finish them. A second call returns immediately.
    pub async fn serve(self: Arc<Self>, stop: CancellationToken) {
        let Some(listener) = self.listener.lock().take() else {
            return;
        };
        let tls = self.config.tls.clone().map(TlsAcceptor::from);
        let accepting = async {
            loop {
                self.limiter.wait_for_slot().await;
                let (socket, address) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a streaming connection; retrying");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                        continue;
                    }
                };
                let slot = Arc::new(self.limiter.admit(Some(address.ip())));
                let (server, tls) = (Arc::clone(&self), tls.clone());
                self.sessions.spawn(async move {
                    let patience = server.config.creation_timeout.min(FIRST_REQUEST);
                    tokio::select! {
                        biased;
                        () = Arc::clone(&server).connection(socket, tls, &slot) => {}
                        () = slot.evicted() => {
                            tracing::debug!(%address, "dropped a client to make room for another");
                        }
                        () = slot.first_request_timeout(patience) => {
                            tracing::debug!(%address, "a client sent no request");
                        }
                    }
                });
            }
        };
        tokio::select! {
            () = accepting => {}
            () = stop.cancelled() => {}
        }
        drop(listener);
        self.stop.cancel();
        self.sessions.close();
        self.sessions.wait().await;
    }

    /// Serves one connection: its request, and the session after the upgrade.
    async fn connection(
        self: Arc<Self>,
        socket: TcpStream,
        tls: Option<TlsAcceptor>,
        slot: &Arc<ConnectionSlot>,
    ) {
        // Keystrokes must not be delayed by Nagle's algorithm.
        let _ = socket.set_nodelay(true);
        keep_alive(&socket);
        match tls {
            None => self.http(socket, slot).await,
            Some(tls) => match tls.accept(socket).await {
                Ok(socket) => self.http(socket, slot).await,
                Err(error) => tracing::debug!(%error, "a TLS handshake failed"),
            },
        }
    }

    async fn http<T>(self: Arc<Self>, io: T, slot: &Arc<ConnectionSlot>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let session = parking_lot::Mutex::new(None);
        let service = service_fn(|request| {
            slot.note_request();
            let answer = match self.answer(request) {
                Ok((answer, upgrade, request)) => {
                    *session.lock() = Some((upgrade, request, slot.mark_authenticated()));
                    answer
                }
                Err(answer) => *answer,
            };
            async { Ok::<_, Infallible>(answer) }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.config.creation_timeout)
            .max_buf_size(LONGEST_REQUEST)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades();
        tokio::select! {
            served = connection => if let Err(error) = served {
                tracing::debug!(%error, "an HTTP request failed");
                return;
            },
            () = self.stop.cancelled() => return,
        }
        let Some((upgrade, negotiated, _busy)) = session.into_inner() else {
            return;
        };
        match upgrade.await {
            Ok(io) => {
                let timeouts = SessionTimeouts {
                    idle: self.config.idle_timeout,
                    creation: self.config.creation_timeout,
                };
                let gone = self.stop.child_token();
                let runtime = Arc::clone(&self.runtime);
                negotiated
                    .run(TokioIo::new(io), runtime, timeouts, gone)
                    .await;
            }
            Err(error) => tracing::debug!(%error, "a connection was not upgraded"),
        }
    }

    /// Handles a request: returns the answer, the upgrade and the negotiated session.
    fn answer(
        &self,
        mut request: hyper::Request<Incoming>,
    ) -> Result<(HandshakeResponse, OnUpgrade, NegotiatedSession), Box<HandshakeResponse>> {
        if !matches!(*request.method(), Method::GET | Method::POST) {
            let text = "405: Method Not Allowed".into();
            return Err(handshake::refuse(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        let missing = || handshake::refuse(StatusCode::NOT_FOUND, "404 page not found".into());
        let base = self.config.base_path.trim_matches('/');
        let upgrade = hyper::upgrade::on(&mut request);
        let (request, _) = request.into_parts();
        let path = request.uri.path().trim_start_matches('/');
        let path = path.strip_prefix(base).ok_or_else(missing)?;
        let (verb, token) = path
            .trim_start_matches('/')
            .split_once('/')
            .ok_or_else(missing)?;
        if !matches!(verb, "exec" | "attach" | "portforward") {
            return Err(missing());
        }
        let pending = self.requests.take(token).ok_or_else(missing)?;
        let websocket = handshake::is_websocket(&request.headers);
        let (answer, negotiated) = match (verb, pending) {
            ("exec", PendingRequest::Exec(exec)) => {
                NegotiatedSession::command(&request, websocket, CommandRequest::Exec(exec))?
            }
            ("attach", PendingRequest::Attach(attach)) => {
                NegotiatedSession::command(&request, websocket, CommandRequest::Attach(attach))?
            }
            ("portforward", PendingRequest::PortForward(sandbox_id, ports)) => {
                NegotiatedSession::port_forward(&request, websocket, sandbox_id, ports)?
            }
            _ => return Err(missing()),
        };
        Ok((answer, upgrade, negotiated))
    }
}

/// Enables TCP keep-alive, as Go's servers do, to detect clients whose machine or network is gone.
fn keep_alive(socket: &TcpStream) {
    let set = set_socket_keepalive(socket, true)
        .and_then(|()| set_tcp_keepidle(socket, KEEP_ALIVE))
        .and_then(|()| set_tcp_keepintvl(socket, KEEP_ALIVE));
    if let Err(error) = set {
        tracing::debug!(%error, "cannot enable TCP keepalive");
    }
}

/// Replaces an unspecified address with the loopback address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
