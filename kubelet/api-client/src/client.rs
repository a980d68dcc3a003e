//! The API server of this node's cluster, and its clients.
//!
//! All clients share the connections; each may have a rate limit of its own. The encoding is always
//! JSON, whatever `kubeAPIContentType` says: API servers accept both.

use std::{sync::Arc, time::Duration};

use hyper::Uri;
use kube::{
    Client,
    client::{ClientBuilder, middleware::BaseUriLayer},
};
use kubelet_host::repeatable::blocking;
use kubelet_http::proxy::{Proxies, ProxyError};
use kubelet_pacing::token_bucket::TokenBucket;
use tokio::time;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_util::sync::CancellationToken;
use tower::Layer as _;
use tracing::{info, warn};

pub use super::server_trust::TrustError;
use super::{
    connection::Connector,
    credentials::Credentials,
    identity::{ClientIdentity, certified_key},
    kubeconfig::{ClusterAccess, KubeconfigError, PairSource},
    metrics::RestMetrics,
    rate_limit::RateLimited,
    retry_after::RetryAfterInStatus,
    server_trust::ServerTrust,
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
    /// It is unclear which servers to trust.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A variable of the environment names no proxy.
    #[error("cannot set up the API server client: {0}")]
    Proxy(#[from] ProxyError),
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
    url: Uri,
    identity: Arc<ClientIdentity>,
    transport: Transport,
}

impl ApiServer {
    /// Returns the API server that a kubeconfig names, with its user's credentials. Blocks on
    /// files.
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
        // An exec plugin alone decides on the certificate that is presented.
        let presented = match access.user.exec {
            Some(_) => Arc::new(ClientIdentity::new(None)),
            None => Arc::clone(&identity),
        };
        let credentials = Credentials::new(access, &presented);
        let credentials = credentials.map_err(|fault| access.field_error(fault))?;
        let tls = if access.url.scheme_str() == Some("https") {
            Some(ServerTrust::new(access, &presented)?)
        } else {
            None
        };
        let name = &access.cluster.tls_server_name;
        let server_name = (!name.is_empty()).then(|| ServerName::try_from(name.clone()));
        let server_name = server_name.transpose().map_err(|error| {
            access.field_error(("tls-server-name", format!("{name:?}: {error}")))
        })?;
        let proxies = proxies(access)?;
        if let Some(proxy) = proxies.of(&access.url) {
            info!(%proxy, server = %access.url, "the API server is reached through a proxy");
        }
        let connector = Connector::new(tls, server_name, Arc::clone(&presented), proxies);
        let host = access.url.authority().map(ToString::to_string);
        let metrics = Arc::new(RestMetrics::new(host.unwrap_or_default()));
        let url = access.url.to_string();
        let transport = Transport::new(url, connector, credentials, presented, metrics);
        Ok(Self(Arc::new(ApiServerInner {
            url: access.url.clone(),
            identity,
            transport,
        })))
    }

    /// Creates a client with a rate limit, or without one if `limit` is unset.
    pub fn client(&self, limit: Option<RateLimit>) -> Client {
        let bucket = limit.map(|limit| {
            let or = |value, default| if value == 0 { default } else { value };
            TokenBucket::new(
                or(limit.qps, DEFAULT_LIMIT.qps),
                or(limit.burst, DEFAULT_LIMIT.burst),
            )
        });
        let service = RateLimited::new(RetryAfterInStatus(self.0.transport.clone()), bucket);
        let service = BaseUriLayer::new(self.0.url.clone()).layer(service);
        ClientBuilder::new(service, "default").build()
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

/// The proxy of the kubeconfig, or those of the environment, as upstream.
fn proxies(access: &ClusterAccess) -> Result<Proxies, ClientError> {
    let proxy = &access.cluster.proxy_url.0;
    if proxy.is_empty() {
        return Ok(Proxies::of_environment()?);
    }
    let proxies = Proxies::always(proxy);
    Ok(proxies.map_err(|error| access.field_error(("proxy-url", error.to_string())))?)
}

#[cfg(test)]
mod tests;
