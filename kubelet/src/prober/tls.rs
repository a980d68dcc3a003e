//! TLS to whoever is there: certificates of containers are not checked, for
//! nobody told the node whom to trust.

use std::{
    io,
    pin::Pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, ClientConfig, DigitallySignedStruct, SignatureScheme,
        client::{
            Resumption,
            danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        },
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, ServerName, UnixTime},
    },
};

/// What a server's first bytes are when it speaks HTTP without TLS.
const PLAIN_HTTP: &[u8; 5] = b"HTTP/";

/// A connection over TLS.
pub(super) type Connection = TlsStream<Watched>;

/// Why there is no connection over TLS.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    /// The server speaks HTTP.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    /// The host is no name or address.
    #[error("tls: {0:?} is no name of a server")]
    Name(String),
    /// No cipher that both sides have, a broken handshake, a lost connection.
    #[error("tls: {0}")]
    Handshake(#[source] io::Error),
    /// TLS cannot be had at all.
    #[error("tls: {0}")]
    Setup(rustls::Error),
}

/// Whether the server chose HTTP/2.
pub(super) fn is_http2(connection: &Connection) -> bool {
    connection.get_ref().1.alpn_protocol() == Some(b"h2")
}

/// Begins TLS with `host`; offers HTTP/2 and HTTP/1.1.
pub(super) async fn connect(stream: TcpStream, host: &str) -> Result<Connection, TlsError> {
    static CONFIG: LazyLock<Result<Arc<ClientConfig>, rustls::Error>> = LazyLock::new(config);
    let config = CONFIG.as_ref().map_err(|e| TlsError::Setup(e.clone()))?;
    let name =
        ServerName::try_from(host.to_owned()).map_err(|_| TlsError::Name(host.to_owned()))?;
    let connector = TlsConnector::from(Arc::clone(config));
    let handshake = connector.connect(name, Watched::new(stream));
    handshake.into_fallible().await.map_err(|(error, stream)| {
        if stream.first == *PLAIN_HTTP {
            TlsError::PlainHttp
        } else {
            TlsError::Handshake(error)
        }
    })
}

fn config() -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A probe is to find out whether a whole handshake works.
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Trusts every certificate.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A connection that remembers what it was told first.
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
