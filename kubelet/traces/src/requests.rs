//! Spans of requests, and their context in headers (W3C Trace Context).

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::{
    HeaderMap, Request, Response, StatusCode,
    header::{HeaderName, HeaderValue},
};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tower::Service;
use tracing::{Instrument as _, Span, field::Empty, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    TARGET,
    spans::{bounded, failed},
};

/// The header with gRPC's status, if the response has nothing else.
const GRPC_STATUS: &str = "grpc-status";
const GRPC_MESSAGE: &str = "grpc-message";

/// The span of an HTTP request of this kubelet, whose headers get its context.
pub fn client_request<B>(request: &mut Request<B>) -> Span {
    let span = info_span!(
        target: TARGET,
        "request",
        otel.name = format_args!("HTTP {}", bounded(request.method().as_str())),
        otel.kind = "client",
        otel.status_code = Empty,
        otel.status_description = Empty,
        http.request.method = bounded(request.method().as_str()),
        http.response.status_code = Empty,
        url.path = bounded(request.uri().path()),
        server.address = request.uri().host(),
    );
    inject(&span, request.headers_mut());
    span
}

/// The span of a request to this kubelet, named by its `route`. Its parent is the one in the headers
/// of a client that `is_trusted`: the parent decides whether the span is exported.
pub fn server_request<B>(request: &Request<B>, route: &str, is_trusted: bool) -> Span {
    let span = info_span!(
        target: TARGET,
        "served request",
        otel.name = format_args!("/{route}"),
        otel.kind = "server",
        otel.status_code = Empty,
        otel.status_description = Empty,
        http.request.method = bounded(request.method().as_str()),
        http.response.status_code = Empty,
        url.path = bounded(request.uri().path()),
    );
    if is_trusted && !span.is_disabled() {
        let parent = TraceContextPropagator::new().extract(&Headers(request.headers()));
        // Fails only if the span has begun, or is not exported.
        let _ = span.set_parent(parent);
    }
    span
}

/// Records the status of the response.
pub fn answered(span: &Span, status: StatusCode) {
    if !span.is_disabled() {
        span.record("http.response.status_code", status.as_u16());
        if status.is_server_error() {
            span.record("otel.status_code", "ERROR");
        }
    }
}

/// Sends the context of a span with a request.
fn inject(span: &Span, headers: &mut HeaderMap) {
    if !span.is_disabled() {
        let context = span.context();
        TraceContextPropagator::new().inject_context(&context, &mut HeadersMut(headers));
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct HeadersMut<'a>(&'a mut HeaderMap);

impl Injector for HeadersMut<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(key.as_bytes()),
            HeaderValue::from_str(&value),
        ) {
            self.0.insert(name, value);
        }
    }
}

/// A gRPC service whose calls have spans.
#[derive(Clone, Debug)]
pub struct TracedCalls<S>(pub S);

impl<S, B, A> Service<Request<B>> for TracedCalls<S>
where
    S: Service<Request<B>, Response = Response<A>>,
    S::Future: Send + 'static,
    S::Error: fmt::Display,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let span = call(request.uri().path());
        inject(&span, request.headers_mut());
        let call = self.0.call(request);
        Box::pin(async move {
            let answer = call.instrument(span.clone()).await;
            match &answer {
                Ok(answer) => returned(&span, answer.headers()),
                Err(error) => failed(&span, error),
            }
            answer
        })
    }
}

/// The span of a gRPC call, by its path: `/runtime.v1.RuntimeService/Version`.
fn call(path: &str) -> Span {
    let name = path.trim_start_matches('/');
    let (service, method) = name.split_once('/').unwrap_or((name, ""));
    info_span!(
        target: TARGET,
        "call",
        otel.name = name,
        otel.kind = "client",
        otel.status_code = Empty,
        otel.status_description = Empty,
        rpc.system = "grpc",
        rpc.service = service,
        rpc.method = method,
        rpc.grpc.status_code = Empty,
    )
}

/// Records the status of a call that has failed; that of others follows their responses.
fn returned(span: &Span, headers: &HeaderMap) {
    let Some(status) = headers.get(GRPC_STATUS) else {
        return;
    };
    let status = status.to_str().unwrap_or_default();
    span.record("rpc.grpc.status_code", status);
    if status != "0" {
        let message = headers.get(GRPC_MESSAGE);
        let message = message.and_then(|message| message.to_str().ok());
        failed(span, &message.unwrap_or_default());
    }
}
