//! Connections to the engine, used by every call. Each call has its own connection, so that no call
//! gets one that broke when the engine was restarted.

use std::{error::Error, io, path::Path, sync::Arc, time::Duration};

use bollard::{BollardRequest, errors::Error as BollardError};
use hyper::{
    Request, Response,
    body::{Body, Incoming},
    client::conn::http1,
    header::{HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use rustix::{net::sockopt, process::Pid};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use super::{Cause, Endpoint, error::root, tls::Tls};

/// The idle time before TCP keepalive probes, and the interval between them.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The number of unanswered probes after which the connection is closed.
const PROBES: u32 = 4;

/// A hint for errors of [`Endpoint::Tcp`] that may be caused by an engine that serves TLS.
pub(super) const TLS_HINT: &str = "; an engine that serves TLS needs --docker-cert-path";

/// A connection over any transport.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Opens connections to an engine.
#[derive(Debug, Clone)]
pub(super) struct Dialer {
    endpoint: Arc<Endpoint>,
    tls: Option<Tls>,
}

/// An open connection.
pub(super) struct DialedConnection {
    io: Box<dyn Io>,
    /// The peer process, if the transport reports it and it is visible in this pid namespace.
    pub(super) peer: Option<Pid>,
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The connection could not be opened.
    #[error("{0}")]
    Connect(#[from] io::Error),
    /// The connection broke, or the peer does not speak HTTP.
    #[error("{}", root(.0))]
    Http(#[from] hyper::Error),
    /// Like [`DialError::Http`], but the engine at an [`Endpoint::Tcp`] may serve TLS.
    #[error("{}{TLS_HINT}", root(.0))]
    NoHttp(hyper::Error),
    /// The certificates are unusable, or the TLS handshake failed.
    #[error("TLS: {0}")]
    Tls(String),
}

// === impl Dialer ===

impl Dialer {
    /// Reads the certificates, if any.
    pub(super) async fn new(endpoint: &Endpoint) -> Result<Self, DialError> {
        let tls = match endpoint.clone() {
            Endpoint::Unix(_) | Endpoint::Tcp(_) => None,
            Endpoint::Tls {
                address,
                certificates,
            } => {
                let read =
                    tokio::task::spawn_blocking(move || Tls::read(&address, &certificates)).await;
                let read = read.map_err(io::Error::other)?;
                Some(read.map_err(|error| DialError::Tls(error.to_string()))?)
            }
        };
        Ok(Self {
            endpoint: Arc::new(endpoint.clone()),
            tls,
        })
    }

    pub(super) async fn dial(&self) -> Result<DialedConnection, DialError> {
        let (io, peer): (Box<dyn Io>, _) = match &*self.endpoint {
            Endpoint::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                let peer = peer(&stream, path);
                (Box::new(stream), peer)
            }
            Endpoint::Tcp(address) | Endpoint::Tls { address, .. } => {
                let stream = connect(address).await?;
                match &self.tls {
                    None => (Box::new(stream), None),
                    Some(tls) => {
                        let secured = tls.secure(stream).await.map_err(DialError::Tls)?;
                        (Box::new(secured), None)
                    }
                }
            }
        };
        Ok(DialedConnection { io, peer })
    }

    /// Sends a request over a new connection.
    pub(super) async fn send<B>(&self, request: Request<B>) -> Result<Response<Incoming>, DialError>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        self.send_over(self.dial().await?, request).await
    }

    /// Sends a request over a connection opened for it.
    pub(super) async fn send_over<B>(
        &self,
        dialled: DialedConnection,
        mut request: Request<B>,
    ) -> Result<Response<Incoming>, DialError>
    where
        B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    {
        // The connection determines the host, so the request has only the path.
        if let Some(path) = request.uri().path_and_query() {
            *request.uri_mut() = path.clone().into();
        }
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static("docker"));
        let (mut sender, connection) = http1::handshake(TokioIo::new(dialled.io)).await?;
        // Ends with the response, or when the connection is upgraded.
        tokio::spawn(connection.with_upgrades());
        let answer = sender.send_request(request).await;
        answer.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: hyper::Error) -> DialError {
        let of_tls = self.tls.as_ref().and_then(|tls| tls.explain(&error));
        match (of_tls, &*self.endpoint) {
            (Some(reason), _) => DialError::Tls(reason),
            (None, Endpoint::Tcp(_)) if error.is_parse() => DialError::NoHttp(error),
            (None, _) => DialError::Http(error),
        }
    }

    /// [`Dialer::send`] with bollard's signature.
    pub(super) async fn send_by_bollard(
        self,
        request: BollardRequest,
    ) -> Result<Response<Incoming>, BollardError> {
        Ok(self.send(request).await?)
    }
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(address).await?;
    keep_alive(&stream)?;
    Ok(stream)
}

/// Without keepalive, a dead peer is not detected.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)
}

/// The peer process. The kernel reports 0 if it is not visible in this pid namespace.
fn peer(stream: &UnixStream, path: &Path) -> Option<Pid> {
    let pid = stream
        .peer_cred()
        .inspect_err(
            |error| tracing::debug!(socket = %path.display(), %error, "no peer credentials"),
        )
        .ok()?
        .pid()?;
    Pid::from_raw(pid)
}

// === impl DialError ===

impl From<DialError> for Cause {
    fn from(error: DialError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

impl From<DialError> for BollardError {
    fn from(error: DialError) -> Self {
        match error {
            DialError::Connect(error) => error.into(),
            DialError::Http(error) | DialError::NoHttp(error) => error.into(),
            DialError::Tls(_) => io::Error::other(error.to_string()).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_peer_by_tcp_that_is_silent_is_given_up_after_75_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let stream = connect(&address).await.unwrap();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let idle = sockopt::tcp_keepidle(&stream).unwrap();
        let interval = sockopt::tcp_keepintvl(&stream).unwrap();
        let probes = sockopt::tcp_keepcnt(&stream).unwrap();
        assert_eq!(idle + interval * probes, Duration::from_secs(75));
    }
}
