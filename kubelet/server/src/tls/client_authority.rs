//! The authorities of client certificates.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_host::clock;
use parking_lot::Mutex;
use tokio_rustls::rustls::{
    self, DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use tracing::{info, warn};

use super::watched_file::Stamp;

/// The authorities of client certificates (`authentication.x509.clientCAFile`), reloaded when the
/// file changes. If the new file is unusable, the old authorities stay in effect.
#[derive(Debug)]
pub struct ClientAuthority {
    path: PathBuf,
    state: Mutex<LoadedAuthority>,
}

#[derive(Debug)]
struct LoadedAuthority {
    stamp: Option<Stamp>,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Why there are no authorities.
#[derive(Debug, thiserror::Error)]
#[error("authentication.x509.clientCAFile {}: {message}", path.display())]
pub struct AuthorityError {
    path: PathBuf,
    message: String,
}

impl ClientAuthority {
    /// Loads the file, in PEM.
    ///
    /// # Errors
    /// The file cannot be read, or contains no certificates.
    pub fn load(path: &Path) -> Result<Self, AuthorityError> {
        let stamp = Stamp::of(path).ok();
        let verifier = read(path)?;
        Ok(Self {
            path: path.to_owned(),
            state: Mutex::new(LoadedAuthority { stamp, verifier }),
        })
    }

    /// Reloads the file if it has changed. Blocks.
    pub fn refresh(&self) {
        let stamp = Stamp::of(&self.path).ok();
        let mut state = self.state.lock();
        if stamp == state.stamp {
            return;
        }
        state.stamp = stamp;
        match read(&self.path) {
            Ok(verifier) => {
                info!(file = %self.path.display(), "reloaded the client CA file");
                state.verifier = verifier;
            }
            Err(error) => {
                warn!(%error, "cannot reload the client CA file; using the old CAs")
            }
        }
    }

    /// Checks that a client certificate chain is signed by one of the authorities and valid now.
    ///
    /// # Errors
    /// Why the chain is not trusted.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let verifier = Arc::clone(&self.state.lock().verifier);
        let Some((own, intermediates)) = chain.split_first() else {
            return Err(rustls::Error::NoCertificatesPresented);
        };
        let now = u64::try_from(clock::now().as_second()).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
        verifier
            .verify_client_cert(own, intermediates, now)
            .map(drop)
    }
}

fn read(path: &Path) -> Result<Arc<dyn ClientCertVerifier>, AuthorityError> {
    let fault = |message: String| AuthorityError {
        path: path.to_owned(),
        message,
    };
    let pem = fs::read(path).map_err(|error: io::Error| fault(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| fault(error.to_string()))?;
        roots
            .add(certificate)
            .map_err(|error| fault(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("it contains no certificate".to_owned()));
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
        .build()
        .map_err(|error| fault(error.to_string()))
}

/// Accepts clients with any certificate whose key they have, and clients without one. Trust is
/// checked for each request, so that an unknown client gets an HTTP response.
#[derive(Debug)]
pub(super) struct AnyCertificate(pub(super) Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
