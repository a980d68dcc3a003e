//! Cache of service account tokens for pods.

use std::{collections::BTreeMap, time::Duration};

use jiff::SignedDuration;
use k8s_openapi::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequestSpec, TokenRequestStatus},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kubelet_host::clock;
use kubelet_pacing::backoff::jittered;
use kubelet_pod_spec::identity::{self, PodUid};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use crate::objects::{ObjectError, Objects};

/// Requested lifetime in seconds if the spec does not set one.
const DEFAULT_EXPIRATION: i64 = 3600;
/// Maximum age of a token, whatever its lifetime.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
const MAX_JITTER: Duration = Duration::from_secs(10);

/// The service account tokens of this node's pods.
#[derive(Debug, Default)]
pub struct TokenCache(Mutex<BTreeMap<PodUid, BTreeMap<TokenKey, CachedToken>>>);

/// The parameters of a token.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TokenKey {
    /// UID of the service account, if known: a recreated account needs new tokens.
    account: Option<String>,
    audiences: Vec<String>,
    /// Requested lifetime in seconds.
    expiration: i64,
}

/// A cached token.
#[derive(Clone, Debug)]
struct CachedToken {
    token: TokenRequestStatus,
    got: Instant,
    /// The remaining lifetime when the token was issued. The server may grant less than was
    /// requested. It is capped at the requested lifetime: a node clock that is behind would
    /// otherwise take the token for valid after its expiry.
    lifetime: SignedDuration,
}

impl TokenCache {
    /// Returns a token of the pod's service account for these audiences, bound to the pod. Without
    /// audiences, the token is for the API server. A cached token is used until a fifth of its
    /// lifetime is left or it is a day old.
    ///
    /// # Errors
    /// A token cannot be requested, and no cached one is valid.
    pub async fn get(
        &self,
        objects: &dyn Objects,
        pod: &Pod,
        audiences: &[String],
        expiration: Option<i64>,
    ) -> Result<TokenRequestStatus, ObjectError> {
        let account = pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.as_deref());
        let key = TokenKey {
            account: None,
            audiences: audiences.to_vec(),
            expiration: expiration.unwrap_or(DEFAULT_EXPIRATION),
        };
        self.get_for(objects, pod, account.unwrap_or("default"), key)
            .await
    }

    /// Like [`Self::get`], for a given service account with its UID.
    ///
    /// # Errors
    /// A token cannot be requested, and no cached one is valid.
    pub async fn get_of(
        &self,
        objects: &dyn Objects,
        pod: &Pod,
        account: &ObjectMeta,
        audiences: &[String],
    ) -> Result<TokenRequestStatus, ObjectError> {
        let key = TokenKey {
            account: account.uid.clone(),
            audiences: audiences.to_vec(),
            expiration: DEFAULT_EXPIRATION,
        };
        let name = account.name.as_deref().unwrap_or_default();
        self.get_for(objects, pod, name, key).await
    }

    async fn get_for(
        &self,
        objects: &dyn Objects,
        pod: &Pod,
        account: &str,
        key: TokenKey,
    ) -> Result<TokenRequestStatus, ObjectError> {
        let uid = PodUid::of(pod);
        let cached = {
            let tokens = self.0.lock();
            tokens
                .get(&uid)
                .and_then(|tokens| tokens.get(&key))
                .cloned()
        };
        if let Some(cached) = &cached
            && cached.is_fresh()
        {
            return Ok(cached.token.clone());
        }
        let request = TokenRequestSpec {
            audiences: Some(key.audiences.clone()),
            expiration_seconds: Some(key.expiration),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: Some(identity::name(pod).to_owned()),
                uid: Some(uid.to_string()),
            }),
        };
        let namespace = identity::namespace(pod);
        let asked = objects.service_account_token(namespace, account, request);
        match (asked.await, cached) {
            (Ok(token), _) => {
                let cached = CachedToken::new(token.clone(), key.expiration);
                self.keep(uid, key, cached);
                Ok(token)
            }
            (Err(error), Some(cached)) if !cached.is_over() => {
                warn!(
                    %error, pod_uid = %uid,
                    "cannot refresh a service account token; using the current one"
                );
                Ok(cached.token)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Stores a token, and removes expired ones.
    fn keep(&self, uid: PodUid, key: TokenKey, cached: CachedToken) {
        let mut tokens = self.0.lock();
        for tokens in tokens.values_mut() {
            tokens.retain(|_, cached| !cached.is_over());
        }
        tokens.retain(|_, tokens| !tokens.is_empty());
        tokens.entry(uid).or_default().insert(key, cached);
    }

    /// Removes the tokens of a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.lock().remove(uid);
    }
}

impl CachedToken {
    /// A token that was just issued, with a requested lifetime of `asked` seconds.
    fn new(token: TokenRequestStatus, asked: i64) -> Self {
        let asked = SignedDuration::from_secs(asked);
        let granted = token.expiration_timestamp.as_ref();
        let granted = granted.map(|expires| expires.0.duration_since(clock::now()));
        Self {
            token,
            got: Instant::now(),
            lifetime: granted.map_or(asked, |granted| granted.min(asked)),
        }
    }

    /// The remaining lifetime. It also follows the wall clock, which advances during suspend.
    fn left(&self) -> SignedDuration {
        let age = SignedDuration::try_from(self.got.elapsed()).unwrap_or(SignedDuration::MAX);
        let left = self.lifetime - age;
        let expires = self.token.expiration_timestamp.as_ref();
        expires.map_or(left, |time| left.min(time.0.duration_since(clock::now())))
    }

    fn is_over(&self) -> bool {
        self.left() <= SignedDuration::ZERO
    }

    fn is_fresh(&self) -> bool {
        // The jitter spreads the requests of pods that were started together.
        let jitter = SignedDuration::try_from(jittered(MAX_JITTER) - MAX_JITTER);
        let reserve = (self.lifetime / 5).max(self.lifetime - MAX_AGE);
        self.left() > reserve + jitter.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
