//! The API server of this node's cluster, and its clients.
//!
//! All clients share the connections; each may have a rate limit of its own. The encoding is always
//! JSON, whatever `kubeAPIContentType` says: API servers accept both.

use std::{sync::Arc, time::Duration};

use hyper::header::{HeaderValue, USER_AGENT};
use kube::{
    Client,
    client::{ClientBuilder, ConfigExt as _},
};
use kubelet_host::{repeatable::blocking, version};
use kubelet_pacing::token_bucket::TokenBucket;
use tokio::time;
use tokio_rustls::rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio_util::sync::CancellationToken;
use tower::{Layer as _, util::option_layer};
use tracing::{info, warn};

use super::{
    connection::Connector,
    identity::{ClientIdentity, certified_key},
    kubeconfig::{ClusterAccess, KubeconfigError, PairSource},
    metrics::RestMetrics,
    rate_limit::RateLimited,
    retry_after::RetryAfterInStatus,
    transport::Transport,
};

/// The period at which certificate files are read again, as upstream.
const RELOAD_PERIOD: Duration = Duration::from_secs(300);
/// The defaults for a `kubeAPIQPS` and a `kubeAPIBurst` of 0, as in upstream's client.
const DEFAULT_LIMIT: RateLimit = RateLimit { qps: 5, burst: 10 };

/// Why a client of the API server cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The kubeconfig is unusable.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// `tls-server-name` is not a valid server name.
    #[error("tls-server-name {name:?}: {source}")]
    ServerName {
        /// The configured name.
        name: String,
        /// Why it is invalid.
        source: InvalidDnsNameError,
    },
    /// The certificate authorities or the user's credentials cannot be loaded.
    #[error("cannot set up the API server client: {0}")]
    Setup(#[from] Box<kube::Error>),
}

/// The rate limit of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests per second; 0 means 5, as in upstream's client.
    pub qps: u32,
    /// Burst of requests; 0 means 10, as in upstream's client.
    pub burst: u32,
}

/// The API server of this node's cluster. Clones are cheap and share their state.
#[derive(Clone, Debug)]
pub struct ApiServer(Arc<ApiServerInner>);

#[derive(Debug)]
struct ApiServerInner {
    config: kube::Config,
    identity: Arc<ClientIdentity>,
    transport: Transport,
}

impl ApiServer {
    /// Returns the API server that a kubeconfig names, with its user's credentials. Blocks on files
    /// and on the user's exec plugin.
    ///
    /// # Errors
    /// The part of the kubeconfig that cannot be used.
    pub fn new(access: &ClusterAccess) -> Result<Self, ClientError> {
        let identity = ClientIdentity::new(access.identity()?);
        Self::with_identity(access, Arc::new(identity))
    }

    /// Like [`Self::new`], with `identity` instead of the kubeconfig's client certificate.
    ///
    /// # Errors
    /// The part of the kubeconfig that cannot be used.
    pub fn with_identity(
        access: &ClusterAccess,
        identity: Arc<ClientIdentity>,
    ) -> Result<Self, ClientError> {
        let mut config = access.config.clone();
        if let Ok(agent) = HeaderValue::from_str(&user_agent()) {
            config.headers.push((USER_AGENT, agent));
        }
        let tls = if config.cluster_url.scheme_str() == Some("https") {
            let mut tls = config.rustls_client_config().map_err(Box::new)?;
            // An exec plugin alone decides on the node's identity, so the certificate it returned
            // stays.
            if config.auth_info.exec.is_none() {
                tls.client_auth_cert_resolver = Arc::clone(&identity) as _;
            }
            Some(tls)
        } else {
            None
        };
        let server_name = config
            .tls_server_name
            .as_ref()
            .filter(|name| !name.is_empty())
            .map(|name| {
                ServerName::try_from(name.clone()).map_err(|source| ClientError::ServerName {
                    name: name.clone(),
                    source,
                })
            })
            .transpose()?;
        let connector = Connector::new(tls, server_name, Arc::clone(&identity));
        let url = config.cluster_url.to_string();
        let host = config.cluster_url.authority().map(ToString::to_string);
        let metrics = Arc::new(RestMetrics::new(host.unwrap_or_default()));
        let transport = Transport::new(url, connector, Arc::clone(&identity), metrics);
        Ok(Self(Arc::new(ApiServerInner {
            config,
            identity,
            transport,
        })))
    }

    /// Creates a client with a rate limit, or without one if `limit` is unset.
    ///
    /// # Errors
    /// The user's credentials cannot be loaded.
    pub fn client(&self, limit: Option<RateLimit>) -> Result<Client, ClientError> {
        let config = &self.0.config;
        let bucket = limit.map(|limit| {
            let or = |value, default| if value == 0 { default } else { value };
            TokenBucket::new(
                or(limit.qps, DEFAULT_LIMIT.qps),
                or(limit.burst, DEFAULT_LIMIT.burst),
            )
        });
        let service = RateLimited::new(RetryAfterInStatus(self.0.transport.clone()), bucket);
        let service = config
            .extra_headers_layer()
            .map_err(Box::new)?
            .layer(service);
        let service = option_layer(config.auth_layer().map_err(Box::new)?).layer(service);
        let service = config.base_uri_layer().layer(service);
        Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
    }

    /// Whether the API server was unreachable at the last request.
    pub fn is_away(&self) -> bool {
        self.0.transport.is_away()
    }

    /// The metrics of all clients.
    pub fn metrics(&self) -> &Arc<RestMetrics> {
        self.0.transport.metrics()
    }

    /// This node's client certificate.
    pub fn identity(&self) -> &Arc<ClientIdentity> {
        &self.0.identity
    }
}

/// Reads a certificate from its files periodically until cancelled, and presents it on new
/// connections once it has changed.
pub async fn reload_identity(
    pair: PairSource,
    identity: Arc<ClientIdentity>,
    cancel: CancellationToken,
) {
    let mut known = None;
    loop {
        let source = pair.clone();
        if let Ok(Ok(found)) = blocking(move || source.read()).await
            && known.as_ref() != Some(&found)
        {
            let is_first = known.is_none();
            match certified_key(&found.0, &found.1) {
                // The certificate that the kubelet started with.
                Ok(_) if is_first => {}
                Ok(key) => {
                    info!("the client certificate changed; reconnecting");
                    identity.replace(Arc::new(key));
                }
                Err(error) => {
                    warn!(%error, "the new client certificate is unusable; keeping the current one")
                }
            }
            known = Some(found);
        }
        let wait = time::sleep(RELOAD_PERIOD);
        if cancel.run_until_cancelled(wait).await.is_none() {
            return;
        }
    }
}

/// The `User-Agent` header.
fn user_agent() -> String {
    let arch = version::go_arch();
    format!("kubelet/{} (linux/{arch})", version::VERSION)
}

#[cfg(test)]
mod tests;
