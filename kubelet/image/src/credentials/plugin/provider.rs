//! A plugin and its cached responses.

use std::{collections::BTreeMap, fmt, sync::Arc};

use futures::{
    FutureExt as _,
    future::{BoxFuture, WeakShared},
};
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::{
    objects::{ObjectError, Objects},
    tokens::TokenCache,
};
use parking_lot::Mutex;
use registry_credentials::{docker_config::DockerConfig, registry_url};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::{
    config::{CredentialProvider, TokenAttributes, TokenCacheType},
    exec::{CacheScope, ExecError, Request, Response, exec},
};
use crate::{
    credentials::{Coordinates, CredentialSource},
    metrics::PluginMetrics,
};

/// A plugin. Identical concurrent requests share one run.
pub struct Provider {
    config: CredentialProvider,
    cache: Mutex<BTreeMap<CacheKey, Cached>>,
    tokens: TokenCache,
    runs: Mutex<BTreeMap<RunKey, WeakShared<Run>>>,
    metrics: Arc<PluginMetrics>,
}

type Run = BoxFuture<'static, Result<Response, ExecError>>;

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider")
            .field("name", &self.config.name)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CacheKey {
    scope: ScopeKey,
    account: Option<AccountKey>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ScopeKey {
    Image(String),
    Registry(String),
    Global,
}

/// The service account that a response is valid for, if it is not valid for all pods.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AccountKey {
    coordinates: Coordinates,
    annotations: BTreeMap<String, String>,
    /// Hash of the token, if the response is valid only for that token.
    token_hash: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RunKey {
    image: String,
    token_hash: String,
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
struct Cached {
    expires: Instant,
    config: DockerConfig,
}

/// A service account in a request to a plugin.
struct Account {
    coordinates: Coordinates,
    annotations: BTreeMap<String, String>,
    token: String,
}

#[derive(Debug, thiserror::Error)]
enum ProvideError {
    #[error("failed to get service account: {0}")]
    Account(#[source] ObjectError),
    #[error("failed to get service account token: {0}")]
    Token(#[source] ObjectError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(
        "the plugin returned the service account token as the password, which is not allowed \
         when the cacheType of its tokenAttributes is not Token"
    )]
    EchoedToken,
}

impl Provider {
    /// A plugin with an empty cache.
    pub fn new(config: CredentialProvider, metrics: Arc<PluginMetrics>) -> Self {
        Self {
            config,
            cache: Mutex::default(),
            tokens: TokenCache::default(),
            runs: Mutex::default(),
            metrics,
        }
    }

    /// The plugin's credentials for a repository, and their source. Empty if the plugin does not
    /// serve the repository or fails; failures are logged.
    pub async fn provide(
        &self,
        image: &str,
        pod: &Pod,
        objects: &dyn Objects,
    ) -> (DockerConfig, CredentialSource) {
        let mut patterns = self.config.match_images.iter();
        if patterns.any(|pattern| registry_url::covers(pattern, image)) {
            match self.credentials(image, pod, objects).await {
                Ok(found) => return found,
                Err(error) => warn!(
                    provider = self.config.name, image, %error,
                    "failed to provide credentials for image"
                ),
            }
        }
        (DockerConfig::new(), CredentialSource::Node)
    }

    async fn credentials(
        &self,
        image: &str,
        pod: &Pod,
        objects: &dyn Objects,
    ) -> Result<(DockerConfig, CredentialSource), ProvideError> {
        let account = match &self.config.token_attributes {
            None => None,
            Some(attributes) => {
                let name = pod
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.service_account_name.as_deref())
                    .unwrap_or_default();
                if name.is_empty() && attributes.require_service_account {
                    return Ok((DockerConfig::new(), CredentialSource::Node));
                }
                // Plugins may serve pods without a service account, such as static pods.
                if name.is_empty() {
                    None
                } else {
                    match account(attributes, name, pod, objects, &self.tokens).await? {
                        Some(account) => Some((attributes, account)),
                        None => return Ok((DockerConfig::new(), CredentialSource::Node)),
                    }
                }
            }
        };
        let source = account
            .as_ref()
            .map_or(CredentialSource::Node, |(_, account)| {
                CredentialSource::ServiceAccount(account.coordinates.clone())
            });
        let account_key = account.as_ref().map(|(attributes, account)| AccountKey {
            coordinates: account.coordinates.clone(),
            annotations: account.annotations.clone(),
            token_hash: (attributes.cache_type == TokenCacheType::Token)
                .then(|| format!("{:x}", Sha256::digest(&account.token))),
        });
        if let Some(config) = self.cached(image, account_key.as_ref()) {
            return Ok((config, source));
        }
        let account = account.map(|(_, account)| account);
        let response = self.ask(image, account.as_ref()).await?;
        if let (Some(account), Some(key)) = (&account, &account_key)
            && key.token_hash.is_none()
            && response.auth.values().any(|c| c.password == account.token)
        {
            return Err(ProvideError::EchoedToken);
        }
        self.keep(image, account_key, &response);
        Ok((response.auth, source))
    }

    fn cached(&self, image: &str, account: Option<&AccountKey>) -> Option<DockerConfig> {
        let now = Instant::now();
        let mut cache = self.cache.lock();
        cache.retain(|_, cached| now <= cached.expires);
        [CacheScope::Image, CacheScope::Registry, CacheScope::Global]
            .into_iter()
            .find_map(|scope| {
                let key = CacheKey {
                    scope: scope_key(scope, image),
                    account: account.cloned(),
                };
                cache.get(&key).map(|cached| cached.config.clone())
            })
    }

    fn keep(&self, image: &str, account: Option<AccountKey>, response: &Response) {
        let duration = response
            .cache_duration
            .unwrap_or(self.config.default_cache_duration);
        let expires = Instant::now().checked_add(duration);
        let Some(expires) = expires.filter(|_| !duration.is_zero()) else {
            return;
        };
        let key = CacheKey {
            scope: scope_key(response.scope, image),
            account,
        };
        let config = response.auth.clone();
        self.cache.lock().insert(key, Cached { expires, config });
    }

    /// Runs the plugin, or joins a concurrent run for the same request.
    async fn ask(&self, image: &str, account: Option<&Account>) -> Result<Response, ExecError> {
        let request = Request {
            image: image.to_owned(),
            service_account_token: account.map(|a| a.token.clone()).unwrap_or_default(),
            service_account_annotations: account.map(|a| a.annotations.clone()).unwrap_or_default(),
        };
        let key = RunKey {
            image: image.to_owned(),
            token_hash: format!("{:x}", Sha256::digest(&request.service_account_token)),
            annotations: request.service_account_annotations.clone(),
        };
        let run = {
            let mut runs = self.runs.lock();
            runs.retain(|_, run| run.upgrade().is_some_and(|run| run.peek().is_none()));
            match runs.get(&key).and_then(WeakShared::upgrade) {
                Some(run) => run,
                None => {
                    debug!(
                        provider = self.config.name,
                        image, "asking a credential provider"
                    );
                    let run = run(self.config.clone(), request, Arc::clone(&self.metrics));
                    let run = run.boxed().shared();
                    if let Some(weak) = run.downgrade() {
                        runs.insert(key, weak);
                    }
                    run
                }
            }
        };
        run.await
    }
}

/// Runs a plugin, and measures that.
async fn run(
    config: CredentialProvider,
    request: Request,
    metrics: Arc<PluginMetrics>,
) -> Result<Response, ExecError> {
    let name = config.name.clone();
    let begun = Instant::now();
    let result = exec(config, request).await;
    // As upstream, a response that is unusable is no error of the run.
    let has_failed = matches!(
        result,
        Err(ExecError::Spawn { .. }
            | ExecError::Deadline { .. }
            | ExecError::TooLong { .. }
            | ExecError::Failed { .. })
    );
    metrics.ran(&name, begun.elapsed(), has_failed);
    result
}

fn scope_key(scope: CacheScope, image: &str) -> ScopeKey {
    match scope {
        CacheScope::Image => ScopeKey::Image(image.to_owned()),
        CacheScope::Registry => {
            ScopeKey::Registry(image.split('/').next().unwrap_or_default().to_owned())
        }
        CacheScope::Global => ScopeKey::Global,
    }
}

/// The pod's service account and a token for it; `None` if the account lacks an annotation that the
/// plugin requires. Accounts opt in with such annotations.
async fn account(
    attributes: &TokenAttributes,
    name: &str,
    pod: &Pod,
    objects: &dyn Objects,
    tokens: &TokenCache,
) -> Result<Option<Account>, ProvideError> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let namespace = text(&pod.metadata.namespace);
    let account = objects
        .service_account(&namespace, name)
        .await
        .map_err(ProvideError::Account)?;
    let all = account.metadata.annotations.clone().unwrap_or_default();
    let mut annotations = BTreeMap::new();
    for key in &attributes.required_annotations {
        let Some(value) = all.get(key) else {
            debug!(
                namespace,
                service_account = name,
                annotation = key,
                "required annotation not found"
            );
            return Ok(None);
        };
        annotations.insert(key.clone(), value.clone());
    }
    for key in &attributes.optional_annotations {
        if let Some(value) = all.get(key) {
            annotations.insert(key.clone(), value.clone());
        }
    }
    let audience = std::slice::from_ref(&attributes.audience);
    let token = tokens
        .get_of(objects, pod, &account.metadata, audience)
        .await
        .map_err(ProvideError::Token)?
        .token
        .unwrap_or_default();
    Ok(Some(Account {
        coordinates: Coordinates {
            uid: text(&account.metadata.uid),
            namespace,
            name: name.to_owned(),
        },
        annotations,
        token,
    }))
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
