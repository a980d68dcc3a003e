//! Token reviews and subject access reviews by the API server.

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus},
};
use kube::{Api, Client, api::PostParams};
use kubelet_api_client::request::{ApiError, ask_within};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time;

/// Deadline of a request.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often a review is asked for, and the first delay, which grows by a half each time; as
/// upstream.
const ATTEMPTS: usize = 5;
const FIRST_DELAY: Duration = Duration::from_millis(500);

/// A review failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot create {resource}: {message}")]
pub struct ReviewError {
    /// The resource of the review.
    pub resource: &'static str,
    /// The cause.
    pub message: String,
}

impl ReviewError {
    fn of(resource: &'static str, error: &ApiError) -> Self {
        let message = error.to_string();
        Self { resource, message }
    }
}

/// Reviews callers; implemented by the API server.
pub trait Reviews: fmt::Debug + Send + Sync {
    /// Reviews a bearer token.
    fn token<'a>(&'a self, token: &'a str)
    -> BoxFuture<'a, Result<TokenReviewStatus, ReviewError>>;

    /// Reviews whether a user may do something.
    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>>;
}

/// Reviews by the API server.
#[derive(Clone)]
pub struct ApiServerReviews(Client);

impl ApiServerReviews {
    /// Reviews through this client.
    pub const fn new(client: Client) -> Self {
        Self(client)
    }
}

impl fmt::Debug for ApiServerReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServerReviews").finish_non_exhaustive()
    }
}

impl Reviews for ApiServerReviews {
    fn token<'a>(
        &'a self,
        token: &'a str,
    ) -> BoxFuture<'a, Result<TokenReviewStatus, ReviewError>> {
        const RESOURCE: &str = "tokenreviews.authentication.k8s.io";
        Box::pin(async move {
            let review = TokenReview {
                spec: TokenReviewSpec {
                    token: token.to_owned(),
                    ..TokenReviewSpec::default()
                },
                ..TokenReview::default()
            };
            let api = Api::<TokenReview>::all(self.0.clone());
            let answer = answer(RESOURCE, &api, &review).await?;
            Ok(answer.status.unwrap_or_default())
        })
    }

    fn access(
        &self,
        spec: SubjectAccessReviewSpec,
    ) -> BoxFuture<'_, Result<SubjectAccessReviewStatus, ReviewError>> {
        const RESOURCE: &str = "subjectaccessreviews.authorization.k8s.io";
        Box::pin(async move {
            let review = SubjectAccessReview {
                spec,
                ..SubjectAccessReview::default()
            };
            let api = Api::<SubjectAccessReview>::all(self.0.clone());
            let answer = answer(RESOURCE, &api, &review).await?;
            Ok(answer.status.unwrap_or_default())
        })
    }
}

/// Asks for a review, again if the API server cannot answer now or breaks the connection off.
async fn answer<K>(resource: &'static str, api: &Api<K>, review: &K) -> Result<K, ReviewError>
where
    K: Clone + fmt::Debug + Serialize + DeserializeOwned,
{
    let mut delay = FIRST_DELAY;
    for _ in 1..ATTEMPTS {
        let params = PostParams::default();
        match ask_within(DEADLINE, api.create(&params, review)).await {
            Err(error) if error.is_unable() || error.is_broken_off() => {
                time::sleep(error.retry_after().unwrap_or(delay).min(DEADLINE)).await;
                delay = delay * 3 / 2;
            }
            done => return done.map_err(|error| ReviewError::of(resource, &error)),
        }
    }
    let last = ask_within(DEADLINE, api.create(&PostParams::default(), review)).await;
    last.map_err(|error| ReviewError::of(resource, &error))
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use axum::{
        body::Body,
        http::{Request, Response, StatusCode},
    };

    use super::*;

    /// Reviews by an API server that fails with this status until the last attempt, and the number
    /// of requests to it.
    fn reviews(failure: StatusCode) -> (ApiServerReviews, Arc<AtomicUsize>) {
        let count = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&count);
        let answer = tower::service_fn(move |_: Request<kube::client::Body>| {
            let is_last = counted.fetch_add(1, Ordering::Relaxed) + 1 >= ATTEMPTS;
            let (status, text) = match is_last {
                true => (
                    StatusCode::CREATED,
                    r#"{"spec": {}, "status": {"authenticated": true}}"#,
                ),
                false => (failure, ""),
            };
            let response = Response::builder().status(status).body(Body::from(text));
            async move { response }
        });
        (ApiServerReviews::new(Client::new(answer, "default")), count)
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_overloaded_is_asked_again() {
        for status in [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::INTERNAL_SERVER_ERROR,
            StatusCode::GATEWAY_TIMEOUT,
        ] {
            let (reviews, count) = reviews(status);
            let review = reviews.token("t").await.unwrap();
            assert_eq!(review.authenticated, Some(true), "{status}");
            assert_eq!(count.load(Ordering::Relaxed), ATTEMPTS);
        }
        let (reviews, count) = reviews(StatusCode::FORBIDDEN);
        reviews.token("t").await.unwrap_err();
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
