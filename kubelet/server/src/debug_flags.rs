//! `/debug/flags/v`: changes the log verbosity at run time.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Method, StatusCode},
    routing::any,
};

use super::{
    NodeView,
    response::{error, text},
};

/// Size limit of a request body, in bytes; a number is shorter.
const LONGEST: usize = 64;

pub(super) fn routes(view: impl NodeView) -> Router {
    let set = any(move |method: Method, body: Body| async move {
        if method != Method::PUT {
            return error(StatusCode::NOT_ACCEPTABLE, "unsupported http method");
        }
        let body = match to_bytes(body, LONGEST).await {
            Ok(body) => String::from_utf8_lossy(&body).into_owned(),
            Err(fault) => {
                let reason = format!("error reading request body: {fault}");
                return error(StatusCode::BAD_REQUEST, reason);
            }
        };
        let failed = |reason: String| {
            let reason = format!("failed set klog.logging.verbosity {body}: {reason}");
            error(StatusCode::BAD_REQUEST, reason)
        };
        match body.trim().parse::<u32>() {
            Ok(verbosity) => match view.set_verbosity(verbosity) {
                Ok(()) => text(
                    StatusCode::OK,
                    format!("successfully set klog.logging.verbosity to {body}"),
                ),
                Err(fault) => failed(fault),
            },
            Err(fault) => failed(fault.to_string()),
        }
    });
    Router::new().route("/debug/flags/v", set)
}
