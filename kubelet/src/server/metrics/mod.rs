//! `/metrics` and what is below it, in Prometheus' text format.

mod exposition;
mod resource;
mod runtime;

use axum::{
    Router,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use super::{NodeView, answer::error};
use exposition::Exposition;

pub(super) fn routes<V: NodeView>(view: V) -> Router {
    let resource = {
        let view = view.clone();
        move || async move { page(resource::metrics(&view).await) }
    };
    let runtime = move || async move {
        match runtime::metrics(&view).await {
            Ok(metrics) => page(metrics),
            Err(fault) => error(StatusCode::INTERNAL_SERVER_ERROR, fault),
        }
    };
    Router::new()
        .route("/metrics/resource", get(resource))
        .route("/metrics/cadvisor", get(runtime))
        .route("/metrics", get(async || not_built("/metrics")))
        .route(
            "/metrics/probes",
            get(async || not_built("/metrics/probes")),
        )
}

fn page(metrics: Exposition) -> Response {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, text)], metrics.into_text()).into_response()
}

fn not_built(path: &str) -> Response {
    error(
        StatusCode::NOT_IMPLEMENTED,
        format_args!("{path} is not built into this kubelet yet"),
    )
}
