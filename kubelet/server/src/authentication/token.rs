//! Authentication by bearer token, with token reviews by the API server.

use std::{net::IpAddr, sync::Arc, time::Duration};

use cri_streaming::bound::Bound;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use sha2::{Digest, Sha256};

use super::{AuthenticationError, User};
use crate::{expiring_cache::ExpiringCache, review_limit::ReviewLimit, reviews::Reviews};

/// Upper limit on the time that a rejected token is cached: the token may become valid.
const REFUSED_TTL: Duration = Duration::from_secs(10);

/// Hash of a token. Tokens themselves are not cached.
type Key = [u8; 32];

/// Reviews tokens and caches the results.
#[derive(Debug)]
pub(super) struct TokenAuthentication {
    reviews: Arc<dyn Reviews>,
    ttl: Duration,
    users: ExpiringCache<Key, User>,
    /// Rejected tokens, apart from valid ones because unauthenticated callers control how many
    /// there are.
    refused: ExpiringCache<Key, ()>,
    limit: ReviewLimit,
}

impl TokenAuthentication {
    pub(super) fn new(reviews: Arc<dyn Reviews>, ttl: Duration) -> Self {
        Self {
            reviews,
            ttl,
            users: ExpiringCache::default(),
            refused: ExpiringCache::default(),
            limit: ReviewLimit::new(["token_reviews", "token_reviews_of_address"]),
        }
    }

    /// The bounds on token reviews.
    pub(super) fn bounds(&self) -> [Arc<Bound>; 2] {
        self.limit.bounds()
    }

    /// The user of a token in a request from `address`.
    pub(super) async fn user(
        &self,
        token: &str,
        address: Option<IpAddr>,
    ) -> Result<User, AuthenticationError> {
        let key: Key = Sha256::digest(token).into();
        if let Some(known) = self.known(&key) {
            return known;
        }
        let _permit = self.limit.acquire(address).await;
        // A concurrent request may have had the same token reviewed.
        if let Some(known) = self.known(&key) {
            return known;
        }
        let status = self.reviews.token(token).await?;
        let refusal = status.error.clone().filter(|error| !error.is_empty());
        match user(status) {
            Some(user) => {
                self.users.put(key, user.clone(), self.ttl);
                Ok(user)
            }
            None => {
                self.refused.put(key, (), self.ttl.min(REFUSED_TTL));
                let refused = refusal.map(AuthenticationError::Refused);
                Err(refused.unwrap_or(AuthenticationError::Token))
            }
        }
    }

    fn known(&self, key: &Key) -> Option<Result<User, AuthenticationError>> {
        let refused = || {
            self.refused
                .get(key)
                .map(|()| Err(AuthenticationError::Token))
        };
        self.users.get(key).map(Ok).or_else(refused)
    }
}

/// The user of a reviewed token; `None` if the token is invalid.
fn user(status: TokenReviewStatus) -> Option<User> {
    if status.authenticated != Some(true) {
        return None;
    }
    let user = status.user.unwrap_or_default();
    Some(User {
        name: user.username.unwrap_or_default(),
        uid: user.uid.unwrap_or_default(),
        groups: user.groups.unwrap_or_default(),
        extra: user.extra.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        net::Ipv4Addr,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use futures::future::BoxFuture;
    use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
    use tokio::time;

    use super::*;
    use crate::reviews::ReviewError;

    /// Knows one token, and counts the reviews.
    #[derive(Debug, Default)]
    struct One(AtomicUsize);

    impl Reviews for One {
        fn token<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<TokenReviewStatus, ReviewError>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            let is_good = token == "good";
            let status = TokenReviewStatus {
                authenticated: Some(is_good),
                // The message of real API servers.
                error: (!is_good).then(|| "[invalid bearer token]".to_owned()),
                ..TokenReviewStatus::default()
            };
            Box::pin(async move { Ok(status) })
        }

        fn access(
            &self,
            _spec: SubjectAccessReviewSpec,
        ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
            Box::pin(async { Ok(SubjectAccessReviewStatus::default()) })
        }
    }

    /// Answers for one token, and never for others.
    #[derive(Debug)]
    struct Slow;

    impl Reviews for Slow {
        fn token<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<TokenReviewStatus, ReviewError>> {
            let status = TokenReviewStatus {
                authenticated: Some(true),
                ..TokenReviewStatus::default()
            };
            match token {
                "good" => Box::pin(async move { Ok(status) }),
                _ => Box::pin(std::future::pending()),
            }
        }

        fn access(
            &self,
            _spec: SubjectAccessReviewSpec,
        ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
            Box::pin(async { Ok(SubjectAccessReviewStatus::default()) })
        }
    }

    const ATTACKER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)));
    const CALLER: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2)));

    #[tokio::test(start_paused = true)]
    async fn random_tokens_from_one_address_leave_reviews_to_others() {
        let ttl = Duration::from_secs(120);
        let tokens = Arc::new(TokenAuthentication::new(Arc::new(Slow), ttl));
        for n in 0..100 {
            let tokens = Arc::clone(&tokens);
            tokio::spawn(async move { tokens.user(&format!("random {n}"), ATTACKER).await });
        }
        tokio::task::yield_now().await;
        let answered = time::timeout(Duration::from_secs(1), tokens.user("good", CALLER)).await;
        answered
            .expect("an answer for who comes from elsewhere")
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_asked_for_again_sooner_than_a_good_one() {
        let reviews = Arc::new(One::default());
        let asked = || reviews.0.load(Ordering::SeqCst);
        let ttl = Duration::from_secs(120);
        let tokens = TokenAuthentication::new(reviews.clone(), ttl);
        for _ in 0..2 {
            tokens.user("good", CALLER).await.unwrap();
            tokens.user("bad", CALLER).await.unwrap_err();
        }
        assert_eq!(asked(), 2);
        time::advance(REFUSED_TTL).await;
        tokens.user("good", CALLER).await.unwrap();
        tokens.user("bad", CALLER).await.unwrap_err();
        assert_eq!(asked(), 3);
        time::advance(ttl).await;
        tokens.user("good", CALLER).await.unwrap();
        assert_eq!(asked(), 4);
    }
}
