//! This node's client certificate: from its kubeconfig, or requested with a bootstrap token.

mod usable;

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use atomic_file::Durability;
use futures::future::BoxFuture;
use kube::Client;
use kubelet_host::{clock, repeatable::blocking};
use kubelet_pacing::backoff::jittered;
use rcgen::KeyPair;
use tokio::{sync::watch, time};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::usable::{Unusable, usable};
use super::{
    kubeconfig_file,
    manager::{CLIENT_SIGNER, CertificateManager, ClientSource, RotationError, holds, store},
    metrics::RenewalMetrics,
    pair::Pair,
    pem,
    request::{RequestError, SigningRequest, Template, new_key},
    store::PairStore,
};
use crate::{
    client::{ApiServer, ClientError, reload_identity},
    identity::ClientIdentity,
    kubeconfig::{ClusterAccess, KubeconfigError},
};

/// How long the first request may stay pending, as upstream.
const DECISION: Duration = Duration::from_secs(3600);
const RETRY: Duration = Duration::from_secs(5);
/// Prefix of the certificate files, as upstream.
const PREFIX: &str = "kubelet-client";
/// File of the first key until its certificate is issued, as upstream.
const FIRST_KEY: &str = "kubelet-client.key.tmp";

/// How this node identifies itself to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityOptions {
    /// How to reach the API server (`--kubeconfig`).
    pub kubeconfig: PathBuf,
    /// Credentials for requesting the first client certificate (`--bootstrap-kubeconfig`).
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory of certificates (`--cert-dir`).
    pub cert_dir: PathBuf,
    /// Renew the client certificate (`rotateCertificates`).
    pub rotate_certificates: bool,
    /// Start even with an expired certificate: pods come from a checkpoint until the API server
    /// accepts this node again.
    pub starts_offline: bool,
}

/// Why the API server cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The kubeconfig is unusable.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The client cannot be set up.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The node has no valid client certificate and cannot request one.
    #[error("{kubeconfig}: {reason}, and --bootstrap-kubeconfig cannot be used either: {source}")]
    Bootstrap {
        /// The kubeconfig.
        kubeconfig: String,
        /// Why the kubeconfig is unusable.
        reason: String,
        /// Why the bootstrap kubeconfig is unusable.
        source: Box<KubeconfigError>,
    },
    /// The kubelet is shutting down.
    #[error("stopped")]
    Stopped,
}

/// Obtains and renews this node's client certificate while its `run` is polled.
#[derive(Debug)]
pub struct IdentityKeeper {
    options: IdentityOptions,
    node_name: String,
    server: ApiServer,
    state: CertificateState,
    renewals: Arc<RenewalMetrics>,
}

#[derive(Debug)]
enum CertificateState {
    /// There is no certificate yet.
    Bootstrap(ClusterAccess),
    /// There is a certificate, or the user needs none.
    Present {
        access: ClusterAccess,
        pair: Option<Arc<Pair>>,
        /// The certificate comes from the kubeconfig, and the node replaces it by one of its own.
        is_foreign: bool,
    },
}

/// Returns the API server of the options, and the keeper of the node's client certificate. Requests
/// wait for the first certificate if there is none yet.
///
/// # Errors
/// The file that is unusable, and the cause.
pub async fn join(
    options: &IdentityOptions,
    node_name: &str,
) -> Result<(ApiServer, IdentityKeeper), JoinError> {
    let (options, node_name) = (options.clone(), node_name.to_owned());
    let opened = blocking(move || {
        let (server, state) = open(&options)?;
        Ok((
            server.clone(),
            IdentityKeeper {
                options,
                node_name,
                server,
                state,
                renewals: Arc::new(RenewalMetrics::client()),
            },
        ))
    });
    opened.await.unwrap_or(Err(JoinError::Stopped))
}

fn open(options: &IdentityOptions) -> Result<(ApiServer, CertificateState), JoinError> {
    let Some(bootstrap) = &options.bootstrap_kubeconfig else {
        let access = ClusterAccess::read(&options.kubeconfig)?;
        return present(options, access);
    };
    let unusable = match usable(&options.kubeconfig) {
        Ok(access) => return present(options, access),
        Err(unusable) => unusable,
    };
    let access = match (ClusterAccess::read(bootstrap), unusable) {
        (Ok(access), unusable) => {
            info!(
                kubeconfig = %options.kubeconfig.display(), reason = unusable.reason,
                "requesting a client certificate with --bootstrap-kubeconfig"
            );
            access
        }
        // Upstream's kubelet exits here, and so does this one unless its pods can start without the
        // API server. kubeadm removes the bootstrap kubeconfig once the node has joined. The
        // kubelet picks up a new certificate from an administrator without a restart.
        (
            Err(error),
            Unusable {
                expired: Some(access),
                reason,
            },
        ) if options.starts_offline => {
            warn!(
                kubeconfig = %options.kubeconfig.display(), reason, %error,
                "cannot authenticate to the API server; starting with the pods in the checkpoint"
            );
            return present(options, *access);
        }
        (Err(source), Unusable { reason, .. }) => {
            return Err(JoinError::Bootstrap {
                kubeconfig: options.kubeconfig.display().to_string(),
                reason,
                source: Box::new(source),
            });
        }
    };
    if options.rotate_certificates
        && let Some(known) = restored(options, &access)
    {
        return present(options, known);
    }
    let identity = Arc::new(ClientIdentity::awaited());
    let server = ApiServer::with_identity(&access.anonymous(), identity)?;
    Ok((server, CertificateState::Bootstrap(access)))
}

/// Writes the kubeconfig for a valid certificate that an earlier kubelet stored; `None` if there is
/// no such certificate.
fn restored(options: &IdentityOptions, bootstrap: &ClusterAccess) -> Option<ClusterAccess> {
    let pairs = PairStore::new(&options.cert_dir, PREFIX);
    let stored = pairs.current().ok().flatten();
    stored.filter(|pair| holds(pair, clock::now()))?;
    let path = &options.kubeconfig;
    if let Err(error) = kubeconfig_file::write(path, &bootstrap.cluster, &pairs.current_path()) {
        warn!(kubeconfig = %path.display(), %error, "cannot write the kubeconfig");
        return None;
    }
    ClusterAccess::read(path).ok()
}

fn present(
    options: &IdentityOptions,
    access: ClusterAccess,
) -> Result<(ApiServer, CertificateState), JoinError> {
    if !options.rotate_certificates {
        let server = ApiServer::new(&access)?;
        let state = CertificateState::Present {
            access,
            pair: None,
            is_foreign: false,
        };
        return Ok((server, state));
    }
    // A renewed certificate is newer than one that is inlined in the kubeconfig.
    let pairs = PairStore::new(&options.cert_dir, PREFIX);
    let stored = pairs.current().unwrap_or_else(|error| {
        warn!(%error, "cannot read the stored client certificate");
        None
    });
    let now = clock::now();
    let (pair, is_foreign) = match stored.filter(|pair| holds(pair, now)) {
        Some(pair) => (Some(pair), false),
        None => match &access.pair {
            Some(source) => {
                let read = source.read().ok();
                let pair = read.and_then(|(certificate, key)| Pair::parse(&certificate, &key).ok());
                // kubeadm expects the certificate there, and points the kubeconfig to it. Files
                // of others stay the source.
                let is_inline = !source.is_in_files();
                let valid = pair.as_ref().filter(|pair| is_inline && holds(pair, now));
                let stored = valid.map(|pair| pairs.update(pair));
                if let Some(Err(error)) = stored {
                    warn!(%error, "cannot store the client certificate from the kubeconfig");
                }
                (pair, is_inline)
            }
            None => (None, false),
        },
    };
    let server = match &pair {
        Some(pair) => {
            let key = tokio_rustls::rustls::sign::CertifiedKey::clone(&pair.key);
            let identity = Arc::new(ClientIdentity::new(Some(key)));
            ApiServer::with_identity(&access, identity)?
        }
        None => ApiServer::new(&access)?,
    };
    let state = CertificateState::Present {
        access,
        pair: pair.map(Arc::new),
        is_foreign,
    };
    Ok((server, state))
}

impl IdentityKeeper {
    /// The counter of failed renewals.
    pub const fn renewals(&self) -> &Arc<RenewalMetrics> {
        &self.renewals
    }

    /// Obtains the first certificate if there is none, and renews it in time, until cancelled.
    pub async fn run(self, cancel: CancellationToken) {
        let (pair, is_foreign) = match self.state {
            CertificateState::Bootstrap(ref access) => {
                let bootstrapping = self.bootstrap(access);
                match cancel.run_until_cancelled(bootstrapping).await {
                    Some(pair) => (Some(Arc::new(pair)), false),
                    None => return,
                }
            }
            CertificateState::Present {
                ref access,
                ref pair,
                is_foreign,
            } => {
                if !self.options.rotate_certificates {
                    let in_files = access.pair.clone().filter(|pair| pair.is_in_files());
                    if let Some(source) = in_files {
                        let identity = Arc::clone(self.server.identity());
                        reload_identity(source, identity, cancel).await;
                    }
                    return;
                }
                (pair.clone(), is_foreign)
            }
        };
        if self.options.rotate_certificates {
            self.rotate(pair, is_foreign, cancel).await;
        }
    }

    async fn rotate(self, pair: Option<Arc<Pair>>, is_foreign: bool, cancel: CancellationToken) {
        let store = PairStore::new(&self.options.cert_dir, PREFIX);
        // The template never changes.
        let (_templates, template) = watch::channel(Some(Template::of_node(&self.node_name)));
        let client = client_source(self.server.clone(), self.options);
        let mut manager = CertificateManager::new(CLIENT_SIGNER, store, template, client)
            .counted(Arc::clone(&self.renewals));
        manager.begin_with(pair, is_foreign);
        let mut pairs = manager.subscribe();
        pairs.mark_unchanged();
        let identity = Arc::clone(self.server.identity());
        let show = async {
            while pairs.changed().await.is_ok() {
                let pair = pairs.borrow_and_update().clone();
                if let Some(pair) = pair {
                    identity.replace(Arc::clone(&pair.key));
                }
            }
        };
        tokio::join!(manager.run(cancel), show);
    }

    /// Requests the first certificate until one is issued.
    async fn bootstrap(&self, access: &ClusterAccess) -> Pair {
        let mut access = access.clone();
        let mut complaint = None;
        loop {
            match self.try_bootstrap(&access).await {
                Ok(pair) => {
                    info!(until = %pair.facts.not_after, "received the client certificate");
                    self.server.identity().replace(Arc::clone(&pair.key));
                    return pair;
                }
                Err(RotationError::Request(error)) if error.is_unreachable() => {}
                Err(error) => {
                    let error = error.to_string();
                    if complaint.as_ref() != Some(&error) {
                        warn!(error, "cannot get a client certificate; retrying");
                        complaint = Some(error);
                    }
                }
            }
            time::sleep(jittered(RETRY)).await;
            // An expired token may have been replaced in the file.
            if let Some(path) = self.options.bootstrap_kubeconfig.clone()
                && let Ok(Ok(newer)) = blocking(move || ClusterAccess::read(&path)).await
            {
                access = newer;
            }
        }
    }

    async fn try_bootstrap(&self, access: &ClusterAccess) -> Result<Pair, RotationError> {
        let client = client_of(access.clone())
            .await
            .map_err(RotationError::Client)?;
        let key = self.first_key().await?;
        let template = Template::of_node(&self.node_name);
        let mut request = SigningRequest {
            template: &template,
            signer: CLIENT_SIGNER,
            key: &key,
            name: None,
        };
        request.name = Some(request.digest_name());
        let outcome = request.certificate(client, DECISION).await;
        let certificate = match outcome {
            Ok(certificate) => certificate,
            Err(error) => {
                // With the same key, a retry would find the failed request again.
                if !matches!(error, RequestError::Create(_)) {
                    self.forget_first_key().await;
                }
                return Err(error.into());
            }
        };
        let pairs = PairStore::new(&self.options.cert_dir, PREFIX);
        let pair = store(&pairs, certificate, key.serialized_der().to_vec()).await?;
        self.forget_first_key().await;
        let (path, cluster) = (self.options.kubeconfig.clone(), access.cluster.clone());
        let written =
            blocking(move || kubeconfig_file::write(&path, &cluster, &pairs.current_path())).await;
        if let Ok(Err(error)) = written {
            let path = self.options.kubeconfig.display();
            // The certificate is stored, so the next start finds it.
            warn!(kubeconfig = %path, %error, "cannot write the kubeconfig");
        }
        Ok(pair)
    }

    fn first_key_path(&self) -> PathBuf {
        self.options.cert_dir.join(FIRST_KEY)
    }

    /// The key of a request from an earlier run, or else a new key.
    async fn first_key(&self) -> Result<KeyPair, RotationError> {
        let path = self.first_key_path();
        let key = blocking(move || {
            if let Ok(text) = fs::read(&path)
                && let Ok(der) = PrivateKeyDer::from_pem_slice(&text)
                && let Ok(key) = KeyPair::try_from(&der)
            {
                return Ok(key);
            }
            let key = new_key()?;
            if let Err(error) = write_key(&path, &key) {
                warn!(
                    path = %path.display(), %error,
                    "cannot store the private key until its certificate is issued"
                );
            }
            Ok(key)
        });
        key.await.unwrap_or(Err(RotationError::Stopped))
    }

    async fn forget_first_key(&self) {
        let path = self.first_key_path();
        let removed = blocking(move || fs::remove_file(&path)).await;
        if let Ok(Err(error)) = removed
            && error.kind() != io::ErrorKind::NotFound
        {
            warn!(%error, "cannot remove the key file of the first certificate");
        }
    }
}

fn write_key(path: &std::path::Path, key: &KeyPair) -> io::Result<()> {
    let text = pem::encode("PRIVATE KEY", key.serialized_der());
    atomic_file::replace(path, text.as_bytes(), 0o600, Durability::Synced)
}

/// A client with the credentials of a kubeconfig.
async fn client_of(access: ClusterAccess) -> Result<Client, String> {
    let server = blocking(move || ApiServer::new(&access)).await;
    match server {
        Ok(Ok(server)) => Ok(server.client(None)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// Renews with the node's own certificate. If that has expired, renews with a certificate that
/// replaced it in the meantime, or else with the bootstrap token, if there is one.
fn client_source(server: ApiServer, options: IdentityOptions) -> ClientSource {
    Box::new(move |has_valid| -> BoxFuture<'static, _> {
        let (server, options) = (server.clone(), options.clone());
        Box::pin(async move {
            let own = |server: &ApiServer| Ok(server.client(None));
            if has_valid {
                return own(&server);
            }
            let bootstrap = options.bootstrap_kubeconfig.clone();
            let found = blocking(move || repaired(&options)).await;
            if let Some(pair) = found.map_err(|error| error.to_string())? {
                if !server.identity().shows(&pair.key) {
                    info!(
                        until = %pair.facts.not_after,
                        "found a valid client certificate to replace the expired one"
                    );
                    server.identity().replace(pair.key);
                }
                return own(&server);
            }
            if let Some(path) = bootstrap {
                let access = blocking(move || ClusterAccess::read(&path)).await;
                match access {
                    Ok(Ok(access)) => return client_of(access).await,
                    Ok(Err(error)) => warn!(
                        %error,
                        "cannot read the bootstrap kubeconfig; renewing without its token"
                    ),
                    Err(error) => return Err(error.to_string()),
                }
            }
            own(&server)
        })
    })
}

/// The certificate of the kubeconfig or the stored one, if either is valid: an administrator may
/// have replaced it. Blocks on files.
fn repaired(options: &IdentityOptions) -> Option<Pair> {
    let of_kubeconfig = || {
        let source = ClusterAccess::read(&options.kubeconfig).ok()?.pair?;
        let (certificate, key) = source.read().ok()?;
        Pair::parse(&certificate, &key).ok()
    };
    let stored = PairStore::new(&options.cert_dir, PREFIX).current();
    let now = clock::now();
    [of_kubeconfig(), stored.ok().flatten()]
        .into_iter()
        .flatten()
        .find(|pair| holds(pair, now))
}

#[cfg(test)]
mod tests;
