//! `/containerLogs/{namespace}/{pod}/{container}`: the log of a container, followed on request.

use axum::{
    Router,
    body::Body,
    extract::{Path, Query},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::stream;
use kubelet_logs::{LogError, LogOptions, LogParts, OptionsError};
use tokio_util::sync::CancellationToken;

use super::{NodeView, body_guard::attach_to_body, bounds::Gate};

/// Responses end with `cancel`. Followed logs are limited by `follow`.
pub(super) fn routes<V: NodeView>(view: V, follow: Gate, cancel: CancellationToken) -> Router {
    let logs = move |Path((namespace, pod, container)): Path<(String, String, String)>,
                     Query(parameters): Query<Vec<(String, String)>>| async move {
        let parameters = parameters.iter().map(|(name, value)| (&**name, &**value));
        let options = match LogOptions::from_parameters(parameters) {
            Ok(options) => options,
            Err(error) => {
                let status = match error {
                    OptionsError::Undecodable => StatusCode::BAD_REQUEST,
                    OptionsError::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
                };
                return refusal(status, error.to_string());
            }
        };
        let place = match options.follow.then(|| follow.enter()).transpose() {
            Ok(place) => place,
            Err(refusal) => return *refusal,
        };
        match view
            .container_log(&namespace, &pod, &container, options)
            .await
        {
            Ok(parts) => attach_to_body(answer(parts, cancel), place),
            Err(error) => {
                let status = match error {
                    LogError::NoPod(_) | LogError::NoContainer { .. } => StatusCode::NOT_FOUND,
                    _ => StatusCode::BAD_REQUEST,
                };
                refusal(status, error.to_string())
            }
        }
    };
    Router::new().route("/containerLogs/{namespace}/{pod}/{container}", get(logs))
}

fn answer(parts: LogParts, cancel: CancellationToken) -> Response {
    let body = stream::unfold(parts, move |mut parts| {
        let cancel = cancel.clone();
        async move {
            let part = cancel.run_until_cancelled(parts.recv()).await.flatten()?;
            Some((part, parts))
        }
    });
    (text_plain(), Body::from_stream(body)).into_response()
}

fn refusal(status: StatusCode, reason: String) -> Response {
    (status, text_plain(), reason).into_response()
}

fn text_plain() -> [(header::HeaderName, HeaderValue); 1] {
    [(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))]
}
