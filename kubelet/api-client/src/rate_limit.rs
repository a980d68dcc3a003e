//! Client-side rate limit of requests to the API server (`kubeAPIQPS`, `kubeAPIBurst`).

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use kubelet_pacing::token_bucket::TokenBucket;
use tower::Service;

/// Delays requests beyond the rate limit, in order of arrival.
#[derive(Clone, Debug)]
pub(super) struct RateLimited<S> {
    inner: S,
    /// No limit when unset.
    bucket: Option<Arc<TokenBucket>>,
}

impl<S> RateLimited<S> {
    pub(super) fn new(inner: S, bucket: Option<TokenBucket>) -> Self {
        Self {
            inner,
            bucket: bucket.map(Arc::new),
        }
    }
}

impl<S, R> Service<R> for RateLimited<S>
where
    S: Service<R> + Clone + Send + 'static,
    S::Future: Send,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // `poll_ready` was called on `self.inner`; its clone is not ready yet.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let bucket = self.bucket.clone();
        Box::pin(async move {
            if let Some(bucket) = bucket {
                bucket.take().await;
            }
            inner.call(request).await
        })
    }
}
