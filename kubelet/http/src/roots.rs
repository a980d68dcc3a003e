//! Root certificates of this machine, from the bundles of its distribution.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use kubelet_host::repeatable::blocking;
use sha2::{Digest as _, Sha256};
use tokio_rustls::rustls::{
    self, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
    server::{ParsedCertificate, VerifierBuilderError},
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// Bundles of root certificates by distribution; the first with certificates is used.
const FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why the root certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RootsError {
    /// None of the files has a certificate.
    #[error("no trusted roots in {0}")]
    None(String),
    /// The certificates are not usable.
    #[error("invalid trusted roots: {0}")]
    Unusable(#[from] VerifierBuilderError),
    /// TLS cannot be configured.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Candidate bundles; the first with certificates is used.
#[derive(Clone, Debug)]
pub struct Roots(Vec<PathBuf>);

impl Roots {
    /// The bundles of this machine, or the file named by `SSL_CERT_FILE`.
    pub fn of_this_machine() -> Self {
        match std::env::var_os("SSL_CERT_FILE") {
            Some(path) => Self::of_file(path.into()),
            None => Self(FILES.iter().map(PathBuf::from).collect()),
        }
    }

    /// A single file.
    pub fn of_file(path: PathBuf) -> Self {
        Self(vec![path])
    }

    /// Reads the certificates and returns a client configuration that trusts them.
    ///
    /// # Errors
    /// See [`RootsError`].
    pub async fn client_config(&self) -> Result<ClientConfig, RootsError> {
        let this = self.clone();
        let config = blocking(move || this.blocking_client_config()).await;
        config.unwrap_or_else(|_| Err(self.none()))
    }

    /// Like [`Self::client_config`]; blocks on the files.
    ///
    /// # Errors
    /// See [`RootsError`].
    pub fn blocking_client_config(&self) -> Result<ClientConfig, RootsError> {
        let found = self.0.iter().map(|path| read(path));
        let found = found.into_iter().find(|found| !found.is_empty());
        client_config(found.ok_or_else(|| self.none())?)
    }

    fn none(&self) -> RootsError {
        let names: Vec<_> = self.0.iter().map(|path| path.to_string_lossy()).collect();
        RootsError::None(names.join(", "))
    }
}

/// The certificates in a file; empty if the file cannot be read.
fn read(path: &Path) -> Vec<CertificateDer<'static>> {
    let found = CertificateDer::pem_file_iter(path);
    found.into_iter().flatten().flatten().collect()
}

/// A client configuration that trusts `certificates`. Bundles contain a few that webpki rejects; these
/// are trusted only as a server's own certificate.
///
/// # Errors
/// [`RootsError::Unusable`] if no certificate is usable, [`RootsError::Tls`].
pub fn client_config(
    certificates: Vec<CertificateDer<'static>>,
) -> Result<ClientConfig, RootsError> {
    let trusted = certificates.iter().map(digest).collect();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(certificates);
    let provider = Arc::new(ring::default_provider());
    let issued =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()?;
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Trust { issued, trusted }))
        .with_no_client_auth();
    Ok(config)
}

fn digest(certificate: &CertificateDer<'_>) -> [u8; 32] {
    Sha256::digest(certificate).into()
}

/// Verifies like Go's clients: a server certificate is trusted if a root issued it, or if it is
/// itself among the roots. The latter covers self-signed certificates, which
/// `openssl req -x509` also marks as a CA.
#[derive(Debug)]
struct Trust {
    issued: Arc<WebPkiServerVerifier>,
    trusted: BTreeSet<[u8; 32]>,
}

impl ServerCertVerifier for Trust {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.trusted.contains(&digest(end_entity)) {
            return self.issued.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
        }
        is_for_servers_now(end_entity, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.issued.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.issued.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}

/// Whether a certificate is valid at this time and for server authentication.
fn is_for_servers_now(
    certificate: &CertificateDer<'_>,
    now: UnixTime,
) -> Result<(), CertificateError> {
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet);
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired);
    }
    match parsed.extended_key_usage() {
        Ok(Some(usage)) if !usage.value.server_auth && !usage.value.any => {
            Err(CertificateError::InvalidPurpose)
        }
        Ok(_) => Ok(()),
        Err(_) => Err(CertificateError::BadEncoding),
    }
}
