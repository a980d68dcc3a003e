//! This node's client certificate for the API server, which can be replaced while the kubelet runs.

use std::{fmt, mem, sync::Arc};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_rustls::rustls::{
    self, SignatureScheme,
    client::ResolvesClientCert,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    sign::CertifiedKey,
};
use tokio_util::sync::CancellationToken;

/// Why a certificate and a key are unusable.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There is no certificate, or it cannot be parsed.
    #[error("no certificate: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    /// There is no private key, or it cannot be parsed.
    #[error("no private key: {0}")]
    Key(rustls::pki_types::pem::Error),
    /// TLS does not support the key, or the key does not belong to the certificate.
    #[error("unusable private key: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Parses a certificate chain and its private key from PEM.
///
/// # Errors
/// One of them is missing or invalid, or the key does not belong to the certificate.
pub fn certified_key(certificate: &[u8], key: &[u8]) -> Result<CertifiedKey, IdentityError> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(IdentityError::Certificate)?;
    if chain.is_empty() {
        let error = rustls::pki_types::pem::Error::NoItemsFound;
        return Err(IdentityError::Certificate(error));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(IdentityError::Key)?;
    let key = ring::default_provider()
        .key_provider
        .load_private_key(key)?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        // Some kinds of keys do not reveal their public key.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(error) => Err(error.into()),
    }
}

/// The client certificate of new connections. As upstream, replacing it closes the connections that
/// were made with the previous one.
pub struct ClientIdentity {
    current: ArcSwapOption<CertifiedKey>,
    /// Cancelled for the connections made before the last replacement.
    connections: Mutex<CancellationToken>,
    /// Whether requests wait for the first certificate.
    awaited: watch::Sender<bool>,
}

impl fmt::Debug for ClientIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIdentity")
            .field("present", &self.current.load().is_some())
            .finish_non_exhaustive()
    }
}

impl ClientIdentity {
    /// An identity with `key`, or without a certificate for users with a token.
    pub fn new(key: Option<CertifiedKey>) -> Self {
        Self {
            current: ArcSwapOption::new(key.map(Arc::new)),
            connections: Mutex::default(),
            awaited: watch::Sender::new(false),
        }
    }

    /// An identity without a certificate yet: requests wait until there is one.
    pub fn awaited() -> Self {
        let identity = Self::new(None);
        identity.awaited.send_replace(true);
        identity
    }

    /// Replaces the certificate and closes existing connections.
    pub fn replace(&self, key: Arc<CertifiedKey>) {
        self.current.store(Some(key));
        self.awaited.send_replace(false);
        self.cut_connections();
    }

    /// Whether new connections use this certificate.
    pub fn shows(&self, key: &CertifiedKey) -> bool {
        let current = self.current.load();
        current.as_ref().is_some_and(|shown| shown.cert == key.cert)
    }

    /// The certificate that new connections use, if there is one.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }

    /// Closes every connection; the next request opens a new one.
    pub fn cut_connections(&self) {
        mem::take(&mut *self.connections.lock()).cancel();
    }

    /// Returns once there is a certificate, or if none is awaited.
    pub(super) async fn settled(&self) {
        let mut awaited = self.awaited.subscribe();
        // The sender lives as long as `self`.
        let _ = awaited.wait_for(|awaited| !awaited).await;
    }

    /// The token that is cancelled when connections opened now must close.
    pub(super) fn connection(&self) -> CancellationToken {
        self.connections.lock().clone()
    }
}

impl ResolvesClientCert for ClientIdentity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }

    fn has_certs(&self) -> bool {
        self.current.load().is_some()
    }
}
