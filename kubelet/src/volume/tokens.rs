//! Tokens of service accounts for pods, kept as long as they are fresh.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::{BoundObjectReference, TokenRequestSpec, TokenRequestStatus},
    core::v1::Pod,
};
use parking_lot::Mutex;
use tracing::warn;

use crate::{
    apiserver::objects::{ObjectError, Objects},
    backoff::jittered,
    clock,
    pod::identity::{self, PodUid},
};

/// Seconds that a token is asked for when the spec does not say.
const DEFAULT_EXPIRATION: i64 = 3600;
/// However long it is valid, a token is not older than this.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
const MAX_JITTER: Duration = Duration::from_secs(10);

/// The tokens of the pods on this node.
#[derive(Debug, Default)]
pub struct TokenCache(Mutex<BTreeMap<PodUid, BTreeMap<Key, TokenRequestStatus>>>);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    audiences: Vec<String>,
    /// Seconds.
    expiration: i64,
}

impl TokenCache {
    /// A token of the pod's service account, bound to the pod, for these audiences (the API
    /// server's own without any): the last one until a fifth of its life is left, or it is a
    /// day old.
    ///
    /// # Errors
    /// There is none, and no older one that is still valid.
    pub async fn get(
        &self,
        objects: &dyn Objects,
        pod: &Pod,
        audiences: &[String],
        expiration: Option<i64>,
    ) -> Result<TokenRequestStatus, ObjectError> {
        let uid = PodUid::of(pod);
        let key = Key {
            audiences: audiences.to_vec(),
            expiration: expiration.unwrap_or(DEFAULT_EXPIRATION),
        };
        let known = {
            let tokens = self.0.lock();
            tokens
                .get(&uid)
                .and_then(|tokens| tokens.get(&key))
                .cloned()
        };
        if let Some(known) = &known
            && expires(known).is_some_and(|expires| is_fresh(expires, key.expiration))
        {
            return Ok(known.clone());
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
        let account = pod
            .spec
            .as_ref()
            .and_then(|s| s.service_account_name.as_deref());
        let account = account.unwrap_or("default");
        let namespace = identity::namespace(pod);
        let asked = objects.service_account_token(namespace, account, request);
        match (asked.await, known) {
            (Ok(token), _) => {
                let mut tokens = self.0.lock();
                tokens.entry(uid).or_default().insert(key, token.clone());
                Ok(token)
            }
            (Err(error), Some(known)) if expires(&known) > Some(clock::now()) => {
                warn!(%error, pod_uid = %uid, "cannot renew a token; using the last one on");
                Ok(known)
            }
            (Err(error), _) => Err(error),
        }
    }

    /// Forgets the tokens of a pod.
    pub fn forget(&self, uid: &PodUid) {
        self.0.lock().remove(uid);
    }
}

fn expires(token: &TokenRequestStatus) -> Option<Timestamp> {
    token.expiration_timestamp.as_ref().map(|time| time.0)
}

fn is_fresh(expires: Timestamp, expiration: i64) -> bool {
    let lifetime = SignedDuration::from_secs(expiration);
    // Many pods that were started together are not to ask together.
    let jitter = SignedDuration::try_from(jittered(MAX_JITTER) - MAX_JITTER).unwrap_or_default();
    let stale = lifetime - (lifetime / 5).max(lifetime - MAX_AGE) - jitter;
    let issued = expires - lifetime;
    clock::now() < issued + stale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_is_renewed_before_it_ends() {
        let hour = 3600;
        let issued = clock::now();
        let expires = issued + SignedDuration::from_secs(hour);
        assert!(is_fresh(expires, hour));
        tokio::time::sleep(Duration::from_secs(2800)).await;
        assert!(is_fresh(expires, hour));
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(!is_fresh(expires, hour));
        let week = 7 * 24 * hour;
        assert!(is_fresh(
            clock::now() + SignedDuration::from_secs(week - 23 * hour),
            week
        ));
        assert!(!is_fresh(
            clock::now() + SignedDuration::from_secs(week - 24 * hour),
            week
        ));
    }
}
