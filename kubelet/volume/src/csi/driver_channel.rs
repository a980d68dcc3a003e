//! The connection to a driver. It distinguishes statuses that the driver sent from those generated
//! on the kubelet's side: when a connection breaks, the call ends with a status that the
//! driver did not send, with any code.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use futures::future::{BoxFuture, FutureExt as _};
use http_body_util::BodyExt as _;
use tonic::{
    Code,
    body::Body,
    codegen::http::{HeaderMap, Request, Response},
    transport::{Channel, Error},
};
use tower::Service;

/// Whether the driver itself has refused a call.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusal(Arc<AtomicBool>);

impl Refusal {
    pub(super) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Records an error status in headers or trailers.
    fn note(&self, headers: &HeaderMap) {
        let status = headers.get("grpc-status");
        let code = status.map(|status| Code::from_bytes(status.as_bytes()));
        if code.is_some_and(|code| code != Code::Ok) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// A channel for one call, which records whether the driver refuses it.
#[derive(Clone, Debug)]
pub(super) struct DriverChannel {
    channel: Channel,
    refusal: Refusal,
}

impl DriverChannel {
    pub(super) fn new(channel: Channel, refusal: Refusal) -> Self {
        Self { channel, refusal }
    }
}

impl Service<Request<Body>> for DriverChannel {
    type Response = Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let refusal = self.refusal.clone();
        let answer = self.channel.call(request);
        async move {
            let answer = answer.await?;
            refusal.note(answer.headers());
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    if let Some(trailers) = frame.trailers_ref() {
                        refusal.note(trailers);
                    }
                    frame
                }))
            }))
        }
        .boxed()
    }
}
