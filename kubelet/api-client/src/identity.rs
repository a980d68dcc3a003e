//! The certificate that this node shows the API server, which can be exchanged while
//! the kubelet runs.

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

/// Why a certificate and a key are no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// There is no certificate, or one that cannot be read.
    #[error("no certificate: {0}")]
    Certificate(rustls::pki_types::pem::Error),
    /// There is no private key, or one that cannot be read.
    #[error("no private key: {0}")]
    Key(rustls::pki_types::pem::Error),
    /// The key is of a kind that TLS does not know, or not the certificate's.
    #[error("unusable private key: {0}")]
    Unusable(#[from] rustls::Error),
}

/// A certificate, those that vouch for it, and its private key, from PEM.
///
/// # Errors
/// Nothing of that is there, or the two do not belong together.
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
        // Some kinds of keys cannot tell.
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
            Ok(certified)
        }
        Err(error) => Err(error.into()),
    }
}

/// The certificate that new connections show. Cheap to share; connections that were
/// made with another one are cut when it is exchanged, as upstream does.
pub struct ClientIdentity {
    current: ArcSwapOption<CertifiedKey>,
    /// Cancelled for the connections that were made before the last exchange.
    connections: Mutex<CancellationToken>,
    /// Whether requests wait for a certificate that is still to come.
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
    /// `key`, or none at all: for users with a token.
    pub fn new(key: Option<CertifiedKey>) -> Self {
        Self {
            current: ArcSwapOption::new(key.map(Arc::new)),
            connections: Mutex::default(),
            awaited: watch::Sender::new(false),
        }
    }

    /// None yet: requests wait until there is one.
    pub fn awaited() -> Self {
        let identity = Self::new(None);
        identity.awaited.send_replace(true);
        identity
    }

    /// Takes another certificate, and cuts the connections made before.
    pub fn replace(&self, key: Arc<CertifiedKey>) {
        self.current.store(Some(key));
        self.awaited.send_replace(false);
        self.cut_connections();
    }

    /// Whether it is this certificate that new connections show.
    pub fn shows(&self, key: &CertifiedKey) -> bool {
        let current = self.current.load();
        current.as_ref().is_some_and(|shown| shown.cert == key.cert)
    }

    /// The certificate that new connections show, if there is one.
    pub fn current(&self) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }

    /// Cuts every connection; the next request makes a new one.
    pub fn cut_connections(&self) {
        mem::take(&mut *self.connections.lock()).cancel();
    }

    /// Returns once a certificate is there, or none is to come.
    pub(super) async fn settled(&self) {
        let mut awaited = self.awaited.subscribe();
        // The sender lives as long as `self`.
        let _ = awaited.wait_for(|awaited| !awaited).await;
    }

    /// Cancelled when connections that begin now are to be cut.
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
