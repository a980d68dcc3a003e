//! Callers by a bearer token that the API server knows.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{AuthenticationError, User};
use crate::server::{expiring::Expiring, reviews::Reviews};

/// How long at most a token is remembered as nobody's: it may be made valid.
const REFUSED_TTL: Duration = Duration::from_secs(10);
/// Questions to the API server at the same time: strangers decide how many tokens there are.
const REVIEWS: usize = 16;

/// Whose a token is; nobody's when `None`.
type Answer = Option<User>;

/// Has tokens reviewed, and remembers the answers by the tokens' hashes.
#[derive(Debug)]
pub(super) struct TokenAuthentication {
    reviews: Arc<dyn Reviews>,
    ttl: Duration,
    answers: Expiring<[u8; 32], Answer>,
    slots: Semaphore,
}

impl TokenAuthentication {
    pub(super) fn new(reviews: Arc<dyn Reviews>, ttl: Duration) -> Self {
        Self {
            reviews,
            ttl,
            answers: Expiring::default(),
            slots: Semaphore::new(REVIEWS),
        }
    }

    /// The user of a token.
    pub(super) async fn user(&self, token: &str) -> Result<User, AuthenticationError> {
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(answer) = self.answers.get(&key) {
            return answer.ok_or(AuthenticationError::Token);
        }
        let _slot = self.slots.acquire().await;
        // While this one waited another may have asked for the same.
        if let Some(answer) = self.answers.get(&key) {
            return answer.ok_or(AuthenticationError::Token);
        }
        let status = self.reviews.token(token).await?;
        if let Some(error) = status.error.as_ref().filter(|error| !error.is_empty())
            && status.authenticated != Some(true)
        {
            return Err(AuthenticationError::Refused(error.clone()));
        }
        let answer = user(status);
        let ttl = match answer {
            Some(_) => self.ttl,
            None => self.ttl.min(REFUSED_TTL),
        };
        self.answers.put(key, answer.clone(), ttl);
        answer.ok_or(AuthenticationError::Token)
    }
}

fn user(status: TokenReviewStatus) -> Answer {
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::BoxFuture;
    use k8s_openapi::api::authorization::v1::{SubjectAccessReviewSpec, SubjectAccessReviewStatus};
    use tokio::time;

    use super::*;
    use crate::server::reviews::ReviewError;

    /// Knows one token, and counts the questions.
    #[derive(Debug, Default)]
    struct One(AtomicUsize);

    impl Reviews for One {
        fn token<'a>(
            &'a self,
            token: &'a str,
        ) -> BoxFuture<'a, Result<TokenReviewStatus, ReviewError>> {
            self.0.fetch_add(1, Ordering::SeqCst);
            let status = TokenReviewStatus {
                authenticated: Some(token == "good"),
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

    #[tokio::test(start_paused = true)]
    async fn a_refused_token_is_asked_for_again_sooner_than_a_good_one() {
        let reviews = Arc::new(One::default());
        let asked = || reviews.0.load(Ordering::SeqCst);
        let ttl = Duration::from_secs(120);
        let tokens = TokenAuthentication::new(reviews.clone(), ttl);
        for _ in 0..2 {
            tokens.user("good").await.unwrap();
            tokens.user("bad").await.unwrap_err();
        }
        assert_eq!(asked(), 2);
        time::advance(REFUSED_TTL).await;
        tokens.user("good").await.unwrap();
        tokens.user("bad").await.unwrap_err();
        assert_eq!(asked(), 3);
        time::advance(ttl).await;
        tokens.user("good").await.unwrap();
        assert_eq!(asked(), 4);
    }
}
