//! Which certificates of the API server are trusted. Authorities in a file are read again for each
//! connection, so that they can be replaced while the kubelet runs, as upstream.

use std::{fmt, fs, path::PathBuf, sync::Arc};

use kubelet_host::repeatable::blocking;
use kubelet_http::{
    roots::{self, Roots, RootsError},
    unverified,
};
use parking_lot::Mutex;
use tokio_rustls::rustls::{
    self, ClientConfig,
    client::Resumption,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tracing::{info, warn};

use super::{
    identity::ClientIdentity,
    kubeconfig::{ClusterAccess, KubeconfigError},
};

/// Why it is unclear which servers to trust.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The kubeconfig is unusable.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The certificate authorities of this machine, which apply if the kubeconfig has none, are
    /// unusable.
    #[error("cannot set up the API server client: {0}")]
    Roots(#[from] RootsError),
    /// TLS cannot be configured.
    #[error("cannot set up the API server client: TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// The TLS configuration of new connections.
pub(super) struct ServerTrust {
    /// The file of the certificate authorities, if they are in one.
    file: Option<PathBuf>,
    identity: Arc<ClientIdentity>,
    current: Mutex<Current>,
}

struct Current {
    /// What was last read from the file, or why it could not be read.
    read: Result<Vec<u8>, String>,
    config: Arc<ClientConfig>,
}

impl fmt::Debug for ServerTrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTrust")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

impl ServerTrust {
    /// The authorities of a kubeconfig, or those of this machine; `identity` is presented. Blocks on
    /// files.
    ///
    /// # Errors
    /// The field that is unusable.
    pub(super) fn new(
        access: &ClusterAccess,
        identity: &Arc<ClientIdentity>,
    ) -> Result<Self, TrustError> {
        let cluster = &access.cluster;
        let (mut file, mut read) = (None, Vec::new());
        let config = if cluster.insecure_skip_tls_verify {
            unverified::client_config()?
        } else {
            let authorities = cluster.authorities();
            match authorities.map_err(|fault| access.field_error(fault))? {
                None => Roots::of_this_machine().blocking_client_config()?,
                Some(authorities) => {
                    let is_in_file = cluster.certificate_authority_data.is_empty();
                    file = is_in_file.then(|| PathBuf::from(&cluster.certificate_authority));
                    let config = trusting(&authorities)
                        .map_err(|fault| access.field_error(("certificate-authority", fault)))?;
                    read = authorities;
                    config
                }
            }
        };
        let current = Current {
            read: Ok(read),
            config: complete(config, identity),
        };
        Ok(Self {
            file,
            identity: Arc::clone(identity),
            current: Mutex::new(current),
        })
    }

    /// The configuration for a new connection.
    pub(super) async fn config(&self) -> Arc<ClientConfig> {
        if let Some(file) = &self.file {
            let path = file.clone();
            // Only a panic leaves no result.
            if let Ok(read) = blocking(move || fs::read(&path)).await {
                self.update(read.map_err(|error| error.to_string()));
            }
        }
        Arc::clone(&self.current.lock().config)
    }

    /// Trusts the authorities that were read, if they are others and usable.
    fn update(&self, read: Result<Vec<u8>, String>) {
        let mut current = self.current.lock();
        if current.read == read {
            return;
        }
        let file = self.file.clone().unwrap_or_default();
        let authorities = read.as_deref().map_err(Clone::clone);
        match authorities.and_then(trusting) {
            Ok(config) => {
                info!(file = %file.display(), "the API server's certificate authorities were read again");
                current.config = complete(config, &self.identity);
            }
            Err(error) => warn!(
                file = %file.display(), error,
                "cannot use the API server's certificate authorities; keeping the current ones"
            ),
        }
        current.read = read;
    }
}

/// A configuration that trusts the authorities in a PEM text.
fn trusting(authorities: &[u8]) -> Result<ClientConfig, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(authorities).collect();
    let found = found.map_err(|error| error.to_string())?;
    if found.is_empty() {
        return Err("there is no certificate in PEM".to_owned());
    }
    roots::client_config(found).map_err(|error| error.to_string())
}

fn complete(mut config: ClientConfig, identity: &Arc<ClientIdentity>) -> Arc<ClientConfig> {
    config.client_auth_cert_resolver = Arc::clone(identity) as _;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // A resumed session would keep the certificate of the original one.
    config.resumption = Resumption::disabled();
    Arc::new(config)
}
