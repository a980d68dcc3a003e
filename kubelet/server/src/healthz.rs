//! `/healthz`: the kubelet's health, in the format of the health checks of Kubernetes components.

use axum::{
    Router,
    extract::{Path, RawQuery},
    http::StatusCode,
    response::Response,
    routing::get,
};

use super::{NodeView, response::text};

/// The checks, in the order of the report.
const CHECKS: [&str; 3] = ["ping", "log", "syncloop"];

/// `/healthz` with all checks, and `/healthz/CHECK` with one.
pub(super) fn routes<V: NodeView>(view: V) -> Router {
    let all = {
        let view = view.clone();
        move |RawQuery(query): RawQuery| async move { check_all(&view, query.as_deref()) }
    };
    let one = move |Path(check): Path<String>| async move { check_one(&view, &check) };
    Router::new()
        .route("/healthz", get(all))
        .route("/healthz/{check}", get(one))
}

/// Runs a check. `ping` and `log` always pass: the process responds, and logging never blocks.
fn run(view: &impl NodeView, check: &str) -> Result<(), String> {
    match check {
        "syncloop" => view.healthy(),
        _ => Ok(()),
    }
}

/// Runs all checks: `ok`, or the result of each if one failed. `?verbose` always lists each, and
/// `?exclude=CHECK` skips one.
fn check_all(view: &impl NodeView, query: Option<&str>) -> Response {
    let parameters: Vec<(&str, &str)> = query
        .unwrap_or_default()
        .split('&')
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .collect();
    let verbose = parameters.iter().any(|(name, _)| *name == "verbose");
    let mut report = String::new();
    let mut failed = false;
    for check in CHECKS {
        if parameters.contains(&("exclude", check)) {
            report += &format!("[+]{check} excluded: ok\n");
            continue;
        }
        match run(view, check) {
            Ok(()) => report += &format!("[+]{check} ok\n"),
            Err(reason) => {
                failed = true;
                report += &format!("[-]{check} failed: {reason}\n");
            }
        }
    }
    if failed {
        text(
            StatusCode::INTERNAL_SERVER_ERROR,
            report + "healthz check failed\n",
        )
    } else if verbose {
        text(StatusCode::OK, report + "healthz check passed\n")
    } else {
        text(StatusCode::OK, "ok".to_owned())
    }
}

fn check_one(view: &impl NodeView, check: &str) -> Response {
    if !CHECKS.contains(&check) {
        let known = CHECKS.join(", ");
        return text(
            StatusCode::NOT_FOUND,
            format!("unknown check {check:?}; the checks are: {known}\n"),
        );
    }
    match run(view, check) {
        Ok(()) => text(StatusCode::OK, "ok".to_owned()),
        Err(reason) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {reason}\n"),
        ),
    }
}
