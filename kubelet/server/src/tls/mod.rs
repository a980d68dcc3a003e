//! TLS of the secure port: its certificate, client certificates, versions and cipher suites.

pub mod certificate;
pub mod client_authority;
pub mod parameters;
pub mod self_signed;
mod watched_file;

use std::{io, sync::Arc};

use kubelet_host::repeatable::blocking;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::CertificateDer,
        server::NoClientAuth,
        sign::{CertifiedKey, SingleCertAndKey},
    },
    server::TlsStream,
};

use self::{
    certificate::ServingCertificate,
    client_authority::{AnyCertificate, ClientAuthority},
    parameters::TlsParameters,
};

/// The client's certificate chain, its own certificate first; empty if it sent none.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerCertificates(pub Arc<[CertificateDer<'static>]>);

/// Accepts TLS connections. The certificate and the client authorities are checked for changes at
/// each connection, so that changes apply from the next connection on.
#[derive(Debug)]
pub(super) struct Tls {
    certificate: Arc<dyn ServingCertificate>,
    authority: Option<Arc<ClientAuthority>>,
    parameters: TlsParameters,
    built: Mutex<Option<CachedConfig>>,
}

/// A configuration and its certificate.
#[derive(Debug)]
struct CachedConfig {
    certificate: Arc<CertifiedKey>,
    config: Arc<ServerConfig>,
}

impl Tls {
    pub(super) fn new(
        certificate: Arc<dyn ServingCertificate>,
        authority: Option<Arc<ClientAuthority>>,
        parameters: TlsParameters,
    ) -> Self {
        Self {
            certificate,
            authority,
            parameters,
            built: Mutex::new(None),
        }
    }

    /// Performs the handshake. The caller sets the deadline.
    pub(super) async fn accept<S>(
        self: &Arc<Self>,
        stream: S,
    ) -> io::Result<(TlsStream<S>, PeerCertificates)>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let this = Arc::clone(self);
        let config = blocking(move || this.config())
            .await
            .map_err(io::Error::other)??;
        let stream = TlsAcceptor::from(config).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let shown = shown
            .iter()
            .map(|certificate| certificate.clone().into_owned())
            .collect();
        Ok((stream, PeerCertificates(shown)))
    }

    /// Returns the current configuration. Blocks on files.
    fn config(&self) -> io::Result<Arc<ServerConfig>> {
        if let Some(authority) = &self.authority {
            authority.refresh();
        }
        let certificate = self.certificate.current().map_err(io::Error::other)?;
        let mut built = self.built.lock();
        if let Some(built) = &*built
            && Arc::ptr_eq(&built.certificate, &certificate)
        {
            return Ok(Arc::clone(&built.config));
        }
        let config = Arc::new(self.build(&certificate).map_err(io::Error::other)?);
        *built = Some(CachedConfig {
            certificate,
            config: Arc::clone(&config),
        });
        Ok(config)
    }

    fn build(
        &self,
        certificate: &Arc<CertifiedKey>,
    ) -> Result<ServerConfig, tokio_rustls::rustls::Error> {
        let provider = Arc::new(CryptoProvider {
            cipher_suites: self.parameters.cipher_suites.clone(),
            kx_groups: self.parameters.key_exchanges.clone(),
            ..ring::default_provider()
        });
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&self.parameters.versions)?
            .with_client_cert_verifier(match self.authority {
                Some(_) => Arc::new(AnyCertificate(provider)),
                None => Arc::new(NoClientAuth),
            });
        let resolver = SingleCertAndKey::from(Arc::clone(certificate));
        let mut config = config.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}
