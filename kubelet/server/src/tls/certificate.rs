//! The certificate of the secure port.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use kubelet_api_client::certificate::pair::Pair;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_rustls::rustls::{
    self,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use tracing::{info, warn};

use super::watched_file::Stamp;

/// Provides the secure port's certificate.
pub trait ServingCertificate: fmt::Debug + Send + Sync {
    /// The certificate and key for the next handshake. Called for each handshake, on a thread that
    /// may block. Returns the same `Arc` until the certificate changes.
    ///
    /// # Errors
    /// There is no certificate, or none yet. The handshake fails.
    fn current(&self) -> Result<Arc<CertifiedKey>, CertificateError>;
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file cannot be read.
    #[error("cannot read {field} {}: {source}", path.display())]
    Read {
        /// The configuration field that names the file.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file contains no certificate or no key.
    #[error("{field} {}: {message}", path.display())]
    Content {
        /// The configuration field that names the file.
        field: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The key does not belong to the certificate, or is unusable.
    #[error("{} and {}: {source}", certificate.display(), key.display())]
    Pair {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// The cause.
        source: rustls::Error,
    },
    /// The API server has not signed a certificate yet.
    #[error("no serving certificate available for the kubelet")]
    NotYet,
}

/// A certificate that the API server signs, and renews before it expires (`serverTLSBootstrap`).
#[derive(Debug)]
pub struct SignedCertificate(watch::Receiver<Option<Arc<Pair>>>);

impl SignedCertificate {
    /// Serves the current pair of the channel.
    pub const fn new(pairs: watch::Receiver<Option<Arc<Pair>>>) -> Self {
        Self(pairs)
    }
}

impl ServingCertificate for SignedCertificate {
    fn current(&self) -> Result<Arc<CertifiedKey>, CertificateError> {
        let pair = self.0.borrow();
        let pair = pair.as_ref().ok_or(CertificateError::NotYet)?;
        Ok(Arc::clone(&pair.key))
    }
}

/// The certificate that the API server signs, or the one from files until there is one.
#[derive(Debug)]
pub struct SignedOrFiles {
    /// The certificate that the API server signs.
    pub signed: Arc<dyn ServingCertificate>,
    /// The certificate from files.
    pub files: CertificateFiles,
}

impl ServingCertificate for SignedOrFiles {
    fn current(&self) -> Result<Arc<CertifiedKey>, CertificateError> {
        self.signed.current().or_else(|_| self.files.current())
    }
}

/// A certificate from files (`tlsCertFile`, `tlsPrivateKeyFile`), reloaded when they change. If the
/// new files are unusable, the old certificate stays in use.
#[derive(Debug)]
pub struct CertificateFiles {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<LoadedCertificate>,
}

#[derive(Debug)]
struct LoadedCertificate {
    stamps: Option<[Stamp; 2]>,
    current: Arc<CertifiedKey>,
}

impl CertificateFiles {
    /// Loads both files, in PEM.
    ///
    /// # Errors
    /// The files cannot be read, or do not belong together.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        // Taken before reading, so that a change during the read triggers another one.
        let stamps = stamps(certificate, key);
        let current = read(certificate, key)?;
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            state: Mutex::new(LoadedCertificate { stamps, current }),
        })
    }
}

impl ServingCertificate for CertificateFiles {
    fn current(&self) -> Result<Arc<CertifiedKey>, CertificateError> {
        let mut state = self.state.lock();
        let stamps = stamps(&self.certificate, &self.key);
        if stamps != state.stamps {
            match read(&self.certificate, &self.key) {
                Ok(read) => {
                    info!(
                        certificate = %self.certificate.display(),
                        "reloaded the serving certificate"
                    );
                    state.current = read;
                }
                Err(error) => {
                    warn!(%error, "cannot reload the serving certificate; using the old one")
                }
            }
            state.stamps = stamps;
        }
        Ok(Arc::clone(&state.current))
    }
}

fn stamps(certificate: &Path, key: &Path) -> Option<[Stamp; 2]> {
    Some([Stamp::of(certificate).ok()?, Stamp::of(key).ok()?])
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, CertificateError> {
    let file = |field, path: &Path| {
        fs::read(path).map_err(|source| CertificateError::Read {
            field,
            path: path.to_owned(),
            source,
        })
    };
    let content = |field, path: &Path, message: String| CertificateError::Content {
        field,
        path: path.to_owned(),
        message,
    };
    const CERTIFICATE: &str = "tlsCertFile";
    const KEY: &str = "tlsPrivateKeyFile";
    let pem = file(CERTIFICATE, certificate)?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| content(CERTIFICATE, certificate, error.to_string()))?;
    if chain.is_empty() {
        let message = "it contains no certificate".to_owned();
        return Err(content(CERTIFICATE, certificate, message));
    }
    let pem = file(KEY, key)?;
    let private = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|error| content(KEY, key, format!("it contains no private key: {error}")))?;
    CertifiedKey::from_der(chain, private, &ring::default_provider())
        .map(Arc::new)
        .map_err(|source| CertificateError::Pair {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::{super::self_signed, *};

    #[test]
    fn the_certificate_from_files_serves_until_the_api_server_has_signed_one() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [certificate, key] = self_signed::ensure(first.path(), "node").unwrap();
        let files = CertificateFiles::load(&certificate, &key).unwrap();
        let own = files.current().unwrap();
        let (sender, pairs) = watch::channel(None);
        let both = SignedOrFiles {
            signed: Arc::new(SignedCertificate::new(pairs)),
            files,
        };
        assert!(Arc::ptr_eq(&both.current().unwrap(), &own));
        let [certificate, key] = self_signed::ensure(second.path(), "node").unwrap();
        let [certificate, key] = [certificate, key].map(|path| std::fs::read(path).unwrap());
        let signed = Arc::new(Pair::parse(&certificate, &key).unwrap());
        sender.send_replace(Some(Arc::clone(&signed)));
        assert!(Arc::ptr_eq(&both.current().unwrap(), &signed.key));
    }

    #[test]
    fn changed_files_are_read_again_and_broken_ones_are_not_used() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let [certificate, key] = self_signed::ensure(first.path(), "node").unwrap();
        let [other_certificate, other_key] = self_signed::ensure(second.path(), "node").unwrap();
        let files = CertificateFiles::load(&certificate, &key).unwrap();
        let before = files.current().unwrap();
        assert!(Arc::ptr_eq(&before, &files.current().unwrap()));

        fs::write(&certificate, "no certificate").unwrap();
        assert!(Arc::ptr_eq(&before, &files.current().unwrap()));

        fs::rename(&other_certificate, &certificate).unwrap();
        assert!(
            Arc::ptr_eq(&before, &files.current().unwrap()),
            "a certificate without its key is not used"
        );
        fs::rename(&other_key, &key).unwrap();
        let after = files.current().unwrap();
        assert_ne!(before.cert, after.cert);
    }

    #[test]
    fn the_file_at_fault_is_named_with_its_field() {
        let dir = tempfile::tempdir().unwrap();
        let [certificate, key] = self_signed::ensure(dir.path(), "node").unwrap();
        let error = |certificate: &Path, key: &Path| {
            CertificateFiles::load(certificate, key)
                .unwrap_err()
                .to_string()
        };
        let text = error(Path::new("/nowhere.crt"), &key);
        assert!(text.contains("tlsCertFile /nowhere.crt"), "{text}");
        let text = error(&certificate, &certificate);
        assert!(text.contains("tlsPrivateKeyFile"), "{text}");
    }
}
