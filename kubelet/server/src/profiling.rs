//! `/debug/pprof/`: the parts that do not depend on Go's runtime.

use std::fs;

use axum::{Router, extract::Path, http::StatusCode, response::Response, routing::get};

use super::response::{error, text};

pub(super) fn routes() -> Router {
    Router::new().route("/debug/pprof/{*name}", get(answer))
}

async fn answer(Path(name): Path<String>) -> Response {
    match name.as_str() {
        // As in Go, NUL bytes separate the arguments.
        "cmdline" => match fs::read_to_string("/proc/self/cmdline") {
            Ok(line) => text(StatusCode::OK, line.trim_end_matches('\0').to_owned()),
            Err(fault) => error(StatusCode::INTERNAL_SERVER_ERROR, fault),
        },
        "profile" | "symbol" | "trace" | "heap" | "goroutine" | "allocs" | "block" | "mutex"
        | "threadcreate" => error(
            StatusCode::NOT_IMPLEMENTED,
            format_args!("/debug/pprof/{name} is not supported by this kubelet"),
        ),
        other => error(
            StatusCode::NOT_FOUND,
            format_args!("Unknown profile {other:?}"),
        ),
    }
}
