//! TLS to the engine, with certificates in a directory laid out as for the Docker CLI: the engine's
//! CA in `ca.pem`, the client's certificate in `cert.pem` and its key in `key.pem`. The engine is
//! always verified.

use std::{
    error::Error,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, AlertDescription, CertificateError as Refused, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem, pem::PemObject},
    },
};

use super::READ;
use crate::bounded_file;

const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";
/// The size limit of each file, in bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// A certificate file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub(super) struct CertificateError {
    path: PathBuf,
    reason: String,
}

/// The TLS configuration for one engine.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
    engine: ServerName<'static>,
    directory: Arc<Path>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = self.directory.display();
        write!(f, "Tls({:?} by {directory})", self.engine)
    }
}

impl Tls {
    /// Reads the certificates in `directory` for the engine at `<host>:<port>`. Blocks for disk
    /// I/O.
    pub(super) fn read(address: &str, directory: &Path) -> Result<Self, CertificateError> {
        let file = |name| directory.join(name);
        let authorities: Vec<CertificateDer<'_>> = read_all(file(AUTHORITY))?;
        let mut roots = RootCertStore::empty();
        for authority in authorities {
            roots
                .add(authority)
                .map_err(|error| bad(file(AUTHORITY), error))?;
        }
        let chain = read_all(file(CERTIFICATE))?;
        let key = read_all::<PrivateKeyDer<'_>>(file(KEY))?;
        let key = key
            .into_iter()
            .next()
            .ok_or_else(|| bad(file(KEY), pem::Error::NoItemsFound))?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| bad(directory.to_owned(), error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    bad(file(KEY), format!("not the key of {CERTIFICATE}"))
                }
                error => bad(file(CERTIFICATE), error),
            })?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let engine = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        Ok(Self {
            connector: TlsConnector::from(Arc::new(config)),
            engine: engine
                .map_err(|error| bad(directory.to_owned(), format!("{host}: {error}")))?,
            directory: directory.into(),
        })
    }

    /// Performs the TLS handshake, which verifies the engine.
    ///
    /// # Errors
    /// A human-readable reason.
    pub(super) async fn secure(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let agreed = self.connector.connect(self.engine.clone(), stream);
        match tokio::time::timeout(READ, agreed).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.explain(&error).unwrap_or_else(|| error.to_string())),
            Err(_) => Err(format!("the handshake did not finish within {READ:?}")),
        }
    }

    /// The certificate error in a failed call, if any. In TLS 1.3, the engine checks the client's
    /// certificate only after the client considers the handshake complete.
    pub(super) fn explain(&self, error: &(dyn Error + 'static)) -> Option<String> {
        use AlertDescription as Alert;
        let error = cause(error)?;
        let file = |name| self.directory.join(name).display().to_string();
        Some(match error {
            rustls::Error::InvalidCertificate(Refused::UnknownIssuer) => format!(
                "the engine's certificate is not signed by a CA in {}",
                file(AUTHORITY)
            ),
            rustls::Error::InvalidCertificate(refused) => {
                format!("the engine's certificate was rejected: {refused}")
            }
            rustls::Error::AlertReceived(
                Alert::AccessDenied
                | Alert::BadCertificate
                | Alert::CertificateExpired
                | Alert::CertificateRequired
                | Alert::CertificateRevoked
                | Alert::CertificateUnknown
                | Alert::DecryptError
                | Alert::UnknownCA
                | Alert::UnsupportedCertificate,
            ) => format!(
                "the engine rejected the certificate in {}: {error}",
                file(CERTIFICATE)
            ),
            rustls::Error::InvalidMessage(_) => {
                format!("the engine's answer is not TLS: {error}")
            }
            error => error.to_string(),
        })
    }
}

/// Finds the rustls error in an error's chain of causes.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// All items of one kind in a file; at least one.
fn read_all<T: PemObject>(path: PathBuf) -> Result<Vec<T>, CertificateError> {
    let bytes = match bounded_file::read(&path, LARGEST_FILE) {
        Ok(bytes) => bytes,
        Err(error) => return Err(bad(path, error)),
    };
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(bad(path, pem::Error::NoItemsFound)),
        Ok(found) => Ok(found),
        Err(error) => Err(bad(path, error)),
    }
}

fn bad(path: PathBuf, reason: impl ToString) -> CertificateError {
    CertificateError {
        path,
        reason: reason.to_string(),
    }
}
