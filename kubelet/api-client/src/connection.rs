//! Connections to the API server: TCP with detection of dead peers, perhaps through a proxy, and TLS
//! with the node's current client certificate. A connection is closed when the certificate is replaced.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use hyper::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection as Describe, HttpConnector},
    rt::TokioIo,
};
use kubelet_http::proxy::Proxies;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls::pki_types::ServerName};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tower::{BoxError, Service};

use super::{identity::ClientIdentity, server_trust::ServerTrust};

/// Timeout for connecting, as in Go's dialer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the TLS handshake, as in Go's HTTP client.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of TCP keep-alive probes, as in Go's dialer.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// The peer is considered dead if it does not acknowledge sent data for this long.
const USER_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects to the API server.
#[derive(Clone, Debug)]
pub(super) struct Connector {
    tcp: HttpConnector,
    proxies: Proxies,
    /// Set for `https` URLs.
    tls: Option<TlsConnectorParts>,
    identity: Arc<ClientIdentity>,
}

#[derive(Clone, Debug)]
struct TlsConnectorParts {
    trust: Arc<ServerTrust>,
    /// `tls-server-name` of the kubeconfig; the URL's host when unset.
    server_name: Option<ServerName<'static>>,
}

impl Connector {
    pub(super) fn new(
        tls: Option<ServerTrust>,
        server_name: Option<ServerName<'static>>,
        identity: Arc<ClientIdentity>,
        proxies: Proxies,
    ) -> Self {
        let tls = tls.map(|trust| TlsConnectorParts {
            trust: Arc::new(trust),
            server_name,
        });
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(KEEPALIVE));
        tcp.set_keepalive_interval(Some(KEEPALIVE));
        tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
        Self {
            tcp,
            proxies,
            tls,
            identity,
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Connection>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default().to_owned();
        let cut = self.identity.connection().cancelled_owned();
        let (tcp, proxies) = (self.tcp.clone(), self.proxies.clone());
        let tls = self.tls.clone();
        Box::pin(async move {
            let stream = proxies.connect(tcp, uri).await?;
            let io = match tls {
                Some(tls) => Io::Tls(Box::new(tls.handshake(stream, &host).await?)),
                None => Io::Plain(stream),
            };
            let cut = Box::pin(cut);
            Ok(TokioIo::new(Connection { io, cut }))
        })
    }
}

impl TlsConnectorParts {
    async fn handshake(self, stream: TcpStream, host: &str) -> io::Result<TlsStream<TcpStream>> {
        let name = match self.server_name {
            Some(name) => name,
            // IPv6 addresses are in brackets in URLs.
            None => ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
                .map_err(io::Error::other)?,
        };
        let connector = TlsConnector::from(self.trust.config().await);
        time::timeout(HANDSHAKE_TIMEOUT, connector.connect(name, stream))
            .await
            .unwrap_or_else(|_| {
                Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the TLS handshake timed out",
                ))
            })
    }
}

/// A connection that fails once `cut` is cancelled.
pub(super) struct Connection {
    io: Io,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
}

enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if self.cut.as_mut().poll(cx).is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "connection closed in order to reconnect",
            ));
        }
        Ok(())
    }
}

impl Describe for Connection {
    fn connected(&self) -> Connected {
        match &self.io {
            Io::Tls(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            _ => Connected::new(),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        match &mut this.io {
            Io::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Io::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Io::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Io::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
