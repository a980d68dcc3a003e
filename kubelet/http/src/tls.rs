//! TLS connections to the server of a URL.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};

/// The first bytes from a server that speaks plain HTTP.
const PLAIN_HTTP: &[u8; 5] = b"HTTP/";

/// Why a TLS connection failed.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The server speaks plain HTTP.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp(#[source] io::Error),
    /// The host is not a valid DNS name or IP address.
    #[error("tls: {0:?} is not a valid server name")]
    Name(String),
    /// The handshake failed or the connection was lost.
    #[error("tls: {0}")]
    Handshake(#[source] io::Error),
}

/// Performs the TLS handshake with `host`.
pub(super) async fn connect(
    stream: TcpStream,
    host: &str,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<Watched>, TlsError> {
    let name =
        ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
    let handshake = TlsConnector::from(config).connect(name, Watched::new(stream));
    handshake.into_fallible().await.map_err(|(error, stream)| {
        if stream.first == *PLAIN_HTTP {
            TlsError::PlainHttp(error)
        } else {
            TlsError::Handshake(error)
        }
    })
}

/// A stream that records the first bytes it reads.
#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    first: [u8; PLAIN_HTTP.len()],
    seen: usize,
}

impl Watched {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            first: [0; PLAIN_HTTP.len()],
            seen: 0,
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let this = &mut *self;
        for (place, byte) in this.first[this.seen..]
            .iter_mut()
            .zip(&buf.filled()[before..])
        {
            *place = *byte;
            this.seen += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
