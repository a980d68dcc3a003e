//! Connections to kubelets, over TLS with the server's client certificate.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::http1,
    header::{HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
        client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    },
};

use super::location::Location;
use crate::{Server, request::Caller};

/// The deadline for connecting to a kubelet.
const CONNECT: Duration = Duration::from_secs(30);
/// The user name of the server's client certificate.
const USER: &str = "kube-apiserver-kubelet-client";
const GROUP: &str = "system:masters";

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Server {
    /// Sends a request and waits for the head of the response.
    pub(super) async fn send(
        &self,
        location: &Location,
        mut request: Request<Full<Bytes>>,
    ) -> io::Result<Response<Incoming>> {
        let stream = timeout(CONNECT, self.connect(location))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| {
                let message = match error.kind() {
                    io::ErrorKind::Other | io::ErrorKind::InvalidData => error.to_string(),
                    kind => format!("connect: {kind}"),
                };
                io::Error::other(format!("dial tcp {}: {message}", location.authority()))
            })?;
        let host = HeaderValue::from_str(&location.authority()).map_err(io::Error::other)?;
        request.headers_mut().insert(HOST, host);
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        // It ends with the response, or with the upgraded connection.
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.map_err(io::Error::other)
    }

    async fn connect(&self, location: &Location) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((location.host.as_str(), location.port)).await?;
        stream.set_nodelay(true)?;
        if !location.tls {
            return Ok(Box::new(stream));
        }
        let config = self.kubelet_tls().map_err(io::Error::other)?;
        let name = ServerName::try_from(location.host.clone()).map_err(io::Error::other)?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Box::new(connector.connect(name, stream).await?))
    }

    fn kubelet_tls(&self) -> anyhow::Result<ClientConfig> {
        let lasts = Duration::from_secs(3600);
        let caller = Caller::new(USER, &[GROUP]);
        let identity = self.authority.client(&self.clock, &caller, lasts)?;
        let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let authority = self.settings.lock().kubelet_authority.clone();
        let builder = match authority {
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                roots.add(CertificateDer::from_pem_slice(pem.as_bytes())?)?;
                builder.with_root_certificates(roots)
            }
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider))),
        };
        Ok(builder.with_client_auth_cert(vec![certificate], key)?)
    }
}

/// Accepts the certificate of any kubelet, like a server without a certificate authority for
/// kubelets.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
