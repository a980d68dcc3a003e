//! Token reviews and subject access reviews by the API server.

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus},
};
use kube::{Api, Client, api::PostParams};
use tokio::time;

/// Deadline of a review.
const DEADLINE: Duration = Duration::from_secs(10);

/// A review failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot create {resource}: {message}")]
pub struct ReviewError {
    /// The resource of the review.
    pub resource: &'static str,
    /// The cause.
    pub message: String,
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
            let answer = within(RESOURCE, api.create(&PostParams::default(), &review)).await?;
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
            let answer = within(RESOURCE, api.create(&PostParams::default(), &review)).await?;
            Ok(answer.status.unwrap_or_default())
        })
    }
}

async fn within<T>(
    resource: &'static str,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ReviewError> {
    let fault = |message: String| ReviewError { resource, message };
    match time::timeout(DEADLINE, call).await {
        Ok(answer) => answer.map_err(|error| fault(error.to_string())),
        Err(_) => Err(fault(format!("no response within {DEADLINE:?}"))),
    }
}
