//! Authorization of callers.

mod attributes;

use std::{
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use cri_streaming::bound::Bound;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReviewSpec};
use tracing::{info, warn};

pub(super) use self::attributes::{subresources, verb};
use super::{
    authentication::User,
    expiring_cache::ExpiringCache,
    review_limit::ReviewLimit,
    reviews::{ReviewError, Reviews},
};

/// Size limit of a cached review, in bytes. Larger ones are not cached, which bounds the memory.
const LONGEST_QUESTION: usize = 10_000;

/// Authorizes callers.
#[derive(Debug)]
pub(super) enum Authorizer {
    /// Allows everything.
    AlwaysAllow,
    /// Asks the API server.
    Webhook(Webhook),
}

/// Reviews access with the API server and caches the results.
#[derive(Debug)]
pub(super) struct Webhook {
    reviews: Arc<dyn Reviews>,
    node_name: String,
    authorized_ttl: Duration,
    unauthorized_ttl: Duration,
    answers: ExpiringCache<String, bool>,
    limit: ReviewLimit,
    is_failing: Outage,
}

impl Webhook {
    pub(super) fn new(
        reviews: Arc<dyn Reviews>,
        node_name: &str,
        [authorized_ttl, unauthorized_ttl]: [Duration; 2],
    ) -> Self {
        Self {
            reviews,
            node_name: node_name.to_owned(),
            authorized_ttl,
            unauthorized_ttl,
            answers: ExpiringCache::default(),
            limit: ReviewLimit::new(["access_reviews", "access_reviews_of_address"]),
            is_failing: Outage::default(),
        }
    }
}

/// Tracks an outage, so that its beginning and its end are logged once each, however many requests
/// it affects.
#[derive(Debug, Default)]
struct Outage(AtomicBool);

impl Outage {
    /// Records a failure; returns whether the outage has just begun.
    fn begins(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    /// Records a success; returns whether an outage has just ended.
    fn ends(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Authorizer {
    /// The bounds on access reviews by the API server.
    pub(super) fn bounds(&self) -> Vec<Arc<Bound>> {
        match self {
            Self::AlwaysAllow => Vec::new(),
            Self::Webhook(webhook) => webhook.limit.bounds().into(),
        }
    }

    /// Checks whether `user`, with a request from `address`, may do `verb` on a subresource of this
    /// node.
    ///
    /// # Errors
    /// The API server gives no answer.
    pub(super) async fn allows(
        &self,
        user: &User,
        verb: &str,
        subresource: &str,
        address: Option<IpAddr>,
    ) -> Result<bool, ReviewError> {
        let webhook = match self {
            Self::AlwaysAllow => return Ok(true),
            Self::Webhook(webhook) => webhook,
        };
        let spec = question(user, verb, subresource, &webhook.node_name);
        let key = serde_json::to_string(&spec).map_err(|error| ReviewError {
            resource: "subjectaccessreviews.authorization.k8s.io",
            message: error.to_string(),
        })?;
        if let Some(answer) = webhook.answers.get(&key) {
            return Ok(answer);
        }
        let _permit = webhook.limit.acquire(address).await;
        if let Some(answer) = webhook.answers.get(&key) {
            return Ok(answer);
        }
        let status = webhook.reviews.access(spec).await;
        match &status {
            Ok(_) if webhook.is_failing.ends() => {
                info!("the API server authorizes requests again");
            }
            Err(error) if webhook.is_failing.begins() => {
                warn!(
                    %error,
                    "cannot authorize requests through the API server; rejecting them until it \
                     responds"
                );
            }
            _ => {}
        }
        let status = status?;
        let allowed = status.allowed && status.denied != Some(true);
        let ttl = match allowed {
            true => webhook.authorized_ttl,
            false => webhook.unauthorized_ttl,
        };
        if key.len() <= LONGEST_QUESTION {
            webhook.answers.put(key, allowed, ttl);
        }
        Ok(allowed)
    }
}

fn question(user: &User, verb: &str, subresource: &str, node: &str) -> SubjectAccessReviewSpec {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SubjectAccessReviewSpec {
        user: some(&user.name),
        uid: some(&user.uid),
        groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        resource_attributes: Some(ResourceAttributes {
            verb: some(verb),
            version: some("v1"),
            resource: some("nodes"),
            subresource: some(subresource),
            name: some(node),
            ..ResourceAttributes::default()
        }),
        ..SubjectAccessReviewSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_when_it_begins_and_when_it_ends() {
        let outage = Outage::default();
        assert!(!outage.ends());
        let told = [outage.begins(), outage.begins(), outage.ends()];
        assert_eq!(told, [true, false, true]);
        assert!(!outage.ends() && outage.begins());
    }
}
