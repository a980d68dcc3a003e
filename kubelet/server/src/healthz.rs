//! `/healthz`: the kubelet's health, in the format of the health checks of Kubernetes components.

use axum::{
    Router,
    extract::{Path, RawQuery},
    http::StatusCode,
    response::Response,
    routing::get,
};

use super::{NodeView, health_check::HealthCheck, metrics::HealthResults, response::text};

/// The checks, in the order of the report. `ping` and `log` always pass: the process responds, and
/// logging never blocks.
const CHECKS: [(&str, Option<HealthCheck>); 4] = [
    ("ping", None),
    ("log", None),
    ("syncloop", Some(HealthCheck::SyncLoop)),
    ("device-plugin", Some(HealthCheck::DevicePlugin)),
];

/// `/healthz` with all checks, and `/healthz/CHECK` with one.
pub(super) fn routes<V: NodeView>(view: V, results: HealthResults) -> Router {
    let all = {
        let view = view.clone();
        move |RawQuery(query): RawQuery| async move { check_all(&view, query.as_deref(), &results) }
    };
    let one = move |Path(check): Path<String>| async move { check_one(&view, &check) };
    Router::new()
        .route("/healthz", get(all))
        .route("/healthz/{check}", get(one))
}

/// Runs all checks: `ok`, or the result of each if one failed. `?verbose` always lists each, and
/// `?exclude=CHECK` skips one.
fn check_all(view: &impl NodeView, query: Option<&str>, results: &HealthResults) -> Response {
    let parameters: Vec<(&str, &str)> = query
        .unwrap_or_default()
        .split('&')
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .collect();
    let verbose = parameters.iter().any(|(name, _)| *name == "verbose");
    let mut report = String::new();
    let mut failed = false;
    for (name, check) in CHECKS {
        if parameters.contains(&("exclude", name)) {
            report += &format!("[+]{name} excluded: ok\n");
            continue;
        }
        let result = check.map_or(Ok(()), |check| view.health(check));
        results.record(name, result.is_ok());
        match result {
            Ok(()) => report += &format!("[+]{name} ok\n"),
            Err(reason) => {
                failed = true;
                report += &format!("[-]{name} failed: {reason}\n");
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

fn check_one(view: &impl NodeView, name: &str) -> Response {
    let Some((_, check)) = CHECKS.iter().find(|(known, _)| *known == name) else {
        let known = CHECKS.map(|(known, _)| known).join(", ");
        return text(
            StatusCode::NOT_FOUND,
            format!("unknown check {name:?}; the checks are: {known}\n"),
        );
    };
    match check.map_or(Ok(()), |check| view.health(check)) {
        Ok(()) => text(StatusCode::OK, "ok".to_owned()),
        Err(reason) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {reason}\n"),
        ),
    }
}
