//! Spans of what the kubelet does by itself.

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity::{self, PodUid};
use tracing::{Instrument as _, Span, field::Empty, info_span};

use crate::TARGET;

/// How much of a text is kept, in bytes.
const LONGEST: usize = 1024;

/// The span of an operation on a pod, such as `syncPod`; `update_type` is what it follows from.
pub fn pod_operation(operation: &'static str, pod: &Pod, update_type: Option<&str>) -> Span {
    let (namespace, name) = (identity::namespace(pod), identity::name(pod));
    info_span!(
        target: TARGET,
        "pod operation",
        otel.name = operation,
        otel.status_code = Empty,
        otel.status_description = Empty,
        k8s.pod.uid = PodUid::of(pod).as_str(),
        k8s.pod = format_args!("{namespace}/{name}"),
        k8s.pod.name = name,
        k8s.pod.update_type = update_type,
        k8s.namespace.name = namespace,
    )
}

/// The span of a collection of garbage, such as `Images/GarbageCollect`.
pub fn garbage_collection(what: &'static str) -> Span {
    info_span!(
        target: TARGET,
        "garbage collection",
        otel.name = what,
        otel.status_code = Empty,
        otel.status_description = Empty,
    )
}

/// Does work in a span, which records its error.
///
/// # Errors
/// That of the work.
pub async fn traced<T, E: fmt::Display>(
    span: Span,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let result = work.instrument(span.clone()).await;
    if let Err(error) = &result {
        failed(&span, error);
    }
    result
}

/// The beginning of a text that others chose. Spans wait in memory until they are exported.
pub(crate) fn bounded(text: &str) -> &str {
    let mut end = text.len().min(LONGEST);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Records an error in a span.
pub(crate) fn failed(span: &Span, error: &dyn fmt::Display) {
    if !span.is_disabled() {
        span.record("otel.status_code", "ERROR");
        span.record("otel.status_description", bounded(&error.to_string()));
    }
}
