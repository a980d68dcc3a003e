//! Connections to a streaming server.

use std::{io, sync::Arc};

use hyper::Uri;
use hyperlocal::UnixConnector;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{self, ClientConfig, pki_types::ServerName},
};
use tower::Service as _;

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The URL is not usable; the text describes the problem.
    #[error("the address {0}")]
    Address(&'static str),
    #[error("connect: {0}")]
    Connect(io::Error),
    #[error("TLS handshake: {0}")]
    Tls(io::Error),
    #[error(
        "TLS handshake: {0}; the certificate must be for that host and trusted by this machine"
    )]
    Certificate(io::Error),
}

/// A connection over any transport.
pub(crate) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Connects to a URL of [`parse_url`](crate::parse_url); `https` requires a `tls` configuration.
pub(crate) async fn dial(
    uri: &Uri,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Box<dyn Io>, DialError> {
    let (tls, port) = match uri.scheme_str() {
        Some("http") => (None, 80),
        Some("https") => {
            let tls = tls.ok_or(DialError::Address("needs a TLS configuration"))?;
            (Some(TlsConnector::from(Arc::clone(tls))), 443)
        }
        Some("unix") => {
            let dialled = UnixConnector.call(uri.clone()).await;
            return Ok(Box::new(dialled.map_err(DialError::Connect)?));
        }
        _ => {
            return Err(DialError::Address(
                "has a scheme other than http://, https:// and unix://",
            ));
        }
    };
    let host = uri.host().ok_or(DialError::Address("has no host"))?;
    let host = host.trim_matches(['[', ']']);
    let socket = TcpStream::connect((host, uri.port_u16().unwrap_or(port)))
        .await
        .map_err(DialError::Connect)?;
    // Keystrokes must not be delayed by Nagle's algorithm.
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else {
        return Ok(Box::new(socket));
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| DialError::Address("has no valid host name"))?;
    match tls.connect(name, socket).await {
        Ok(socket) => Ok(Box::new(socket)),
        Err(error) if is_about_certificate(&error) => Err(DialError::Certificate(error)),
        Err(error) => Err(DialError::Tls(error)),
    }
}

fn is_about_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref());
    matches!(error, Some(rustls::Error::InvalidCertificate(_)))
}
