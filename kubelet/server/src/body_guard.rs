//! Values that live as long as the body of a response.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use hyper::body::{Frame, SizeHint};

/// Keeps a value until the response body is read or dropped. Data after an upgrade is not part of
/// the body.
pub(super) fn attach_to_body<K: Send + Unpin + 'static>(answer: Response, kept: K) -> Response {
    answer.map(|body| Body::new(GuardedBody { body, _kept: kept }))
}

/// A body and a value that is dropped with it.
struct GuardedBody<K> {
    body: Body,
    _kept: K,
}

impl<K: Unpin> hyper::body::Body for GuardedBody<K> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
