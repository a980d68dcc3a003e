//! Measures every request from its headers to the end of its response. The layer is omitted if
//! metrics are not served.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::{
    Request, Response,
    body::{Body as HttpBody, Frame, SizeHint},
};
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use crate::metrics::{InFlight, RequestMetrics};

/// All CRI verbs, so that a name made up by a client does not become a new time series.
const VERBS: &[&str] = &[
    "Version",
    "RunPodSandbox",
    "StopPodSandbox",
    "RemovePodSandbox",
    "PodSandboxStatus",
    "ListPodSandbox",
    "StreamPodSandboxes",
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "ListContainers",
    "StreamContainers",
    "ContainerStatus",
    "UpdateContainerResources",
    "ReopenContainerLog",
    "ExecSync",
    "Exec",
    "Attach",
    "PortForward",
    "ContainerStats",
    "ListContainerStats",
    "StreamContainerStats",
    "PodSandboxStats",
    "ListPodSandboxStats",
    "StreamPodSandboxStats",
    "UpdateRuntimeConfig",
    "Status",
    "CheckpointContainer",
    "CheckpointPod",
    "RestorePod",
    "GetContainerEvents",
    "ListMetricDescriptors",
    "ListPodSandboxMetrics",
    "StreamPodSandboxMetrics",
    "RuntimeConfig",
    "UpdatePodSandboxResources",
    "ListImages",
    "StreamImages",
    "ImageStatus",
    "PullImage",
    "RemoveImage",
    "ImageFsInfo",
];
/// The label for all other names.
const NO_VERB: &str = "unknown";

/// The layer that measures requests to the services it wraps.
#[derive(Clone, Debug)]
pub struct MetricsLayer {
    metrics: RequestMetrics,
}

/// Services with measured requests.
#[derive(Clone, Debug)]
pub struct MetricsService<S> {
    services: S,
    metrics: RequestMetrics,
}

/// A response in progress; its gRPC code arrives in the trailers.
struct MeasuredBody {
    body: Body,
    /// `Some` until the response has ended.
    request: Option<InFlight>,
}

// === impl MetricsLayer ===

impl MetricsLayer {
    /// Records in `metrics`.
    pub fn new(metrics: RequestMetrics) -> Self {
        Self { metrics }
    }
}

impl<S> Layer<S> for MetricsLayer {
    type Service = MetricsService<S>;

    fn layer(&self, services: S) -> MetricsService<S> {
        MetricsService {
            services,
            metrics: self.metrics.clone(),
        }
    }
}

// === impl MetricsService ===

impl<S, B> Service<Request<B>> for MetricsService<S>
where
    S: Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.services.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut in_flight = self.metrics.begin(verb(request.uri().path()));
        let answer = self.services.call(request);
        Box::pin(async move {
            let (head, body) = answer.await?.into_parts();
            // An error before the first message is in the headers; no trailers follow.
            if let Some(status) = Status::from_header_map(&head.headers) {
                in_flight.note(status.code());
            }
            let request = Some(in_flight);
            let body = Body::new(MeasuredBody { body, request });
            Ok(Response::from_parts(head, body))
        })
    }
}

/// The verb of a path such as `/runtime.v1.RuntimeService/ListContainers`.
fn verb(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or_default();
    let known = VERBS.iter().find(|verb| **verb == name);
    known.copied().unwrap_or(NO_VERB)
}

// === impl MeasuredBody ===

impl HttpBody for MeasuredBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let code = match &polled {
            Poll::Ready(Some(Ok(frame))) => frame
                .trailers_ref()
                .and_then(Status::from_header_map)
                .map(|status| status.code()),
            Poll::Ready(Some(Err(status))) => Some(status.code()),
            _ => None,
        };
        if let Some(code) = code
            && let Some(mut request) = self.request.take()
        {
            request.note(code);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};
    use hyper::HeaderMap;
    use tower::{ServiceExt as _, service_fn};

    use super::*;
    use crate::metrics::Metrics;

    /// The recorded metrics after a request to `path` whose response was read to its end.
    async fn counted(path: &str, answer: fn() -> Response<Body>) -> String {
        let metrics = Metrics::new();
        let services = service_fn(move |_: Request<()>| std::future::ready(Ok(answer())));
        let services = MetricsLayer::new(metrics.requests.clone()).layer(services);
        let request = Request::get(path).body(()).unwrap();
        let answer = services.oneshot(request).await.unwrap();
        let _ = answer.into_body().collect().await;
        let text = metrics.encode().unwrap();
        assert!(text.contains("dockershim_requests_in_flight 0"), "{text}");
        text
    }

    #[tokio::test]
    async fn the_code_is_read_from_the_head_or_the_trailers() {
        let refused = counted("/runtime.v1.RuntimeService/ContainerStatus", || {
            Status::not_found("no container").into_http()
        });
        let expected = "{verb=\"ContainerStatus\",code=\"NotFound\"} 1";
        let text = refused.await;
        assert!(text.contains(expected), "{text}");

        let streamed = counted("/runtime.v1.RuntimeService/GetContainerEvents", || {
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "14".parse().unwrap());
            let frames = [
                Frame::data(Bytes::from_static(b"message")),
                Frame::trailers(trailers),
            ];
            let frames = frames.map(Ok::<_, Status>);
            Response::new(Body::new(StreamBody::new(futures::stream::iter(frames))))
        });
        let expected = "{verb=\"GetContainerEvents\",code=\"Unavailable\"} 1";
        let text = streamed.await;
        assert!(text.contains(expected), "{text}");
    }

    #[tokio::test]
    async fn a_made_up_verb_is_no_series() {
        let answer = || Status::unimplemented("").into_http();
        let text = counted("/runtime.v1.RuntimeService/Nonsense", answer).await;
        let expected = "{verb=\"unknown\",code=\"Unimplemented\"} 1";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn the_verbs_are_those_of_the_interface() {
        let proto = include_str!("../../../proto/proto/cri/runtime_v1.proto");
        let declared = proto.lines().filter_map(|line| {
            let rest = line.trim_start().strip_prefix("rpc ")?;
            Some(rest.split('(').next()?.trim())
        });
        let declared: Vec<&str> = declared.collect();
        assert_eq!(declared, VERBS);
    }
}
