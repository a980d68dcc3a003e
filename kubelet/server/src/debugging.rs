//! The handlers that only the secure port has, and the responses of disabled handlers.

use std::{path::PathBuf, sync::Arc};

use axum::{Router, http::StatusCode, routing::any};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    NodeView,
    bounds::Gates,
    checkpoint, commands, configz, container_logs, debug_flags,
    options::SecureOptions,
    pods, profiling,
    response::error,
    streaming_server::{self, StreamingServer},
    streams, system_logs, zpages,
};

/// The directory that `/logs/` serves.
const SYSTEM_LOGS: &str = "/var/log";

/// Base paths of the debugging handlers, which return 405 when these are disabled.
const DEBUGGING: [&str; 8] = [
    "/run",
    "/exec",
    "/attach",
    "/portForward",
    "/containerLogs",
    "/runningpods",
    "/debug/pprof",
    "/logs",
];

/// The handlers that the read-only port does not have. Proxied streams run as tasks of `tasks`.
pub(super) fn routes<V: NodeView>(
    view: V,
    options: &SecureOptions,
    gates: &Gates,
    tasks: &TaskTracker,
    cancel: &CancellationToken,
) -> Router {
    let handlers = options.handlers;
    if !handlers.debugging {
        return disabled();
    }
    let streaming = Arc::new(StreamingServer::new(
        options.streaming_roots.clone(),
        tasks,
        cancel,
    ));
    let optional = |enabled: bool, routes: Router, base: &str, reason| {
        if enabled {
            routes
        } else {
            switched_off(base, reason)
        }
    };
    Router::new()
        .merge(pods::running_routes(view.clone()))
        .merge(container_logs::routes(
            view.clone(),
            gates.followed_logs.clone(),
            cancel.clone(),
        ))
        .merge(configz::routes(&options.configz))
        .merge(streams::routes(view.clone(), Arc::clone(&streaming), gates))
        .merge(streaming_server::routes(
            view.clone(),
            streaming,
            gates.clone(),
        ))
        .merge(commands::routes(view.clone(), &gates.runs))
        .merge(if handlers.checkpoint {
            checkpoint::routes(view.clone(), options.root_dir.clone())
        } else {
            Router::new()
        })
        .merge(if handlers.statusz {
            zpages::statusz_routes()
        } else {
            Router::new()
        })
        .merge(if handlers.flagz {
            zpages::flagz_routes(options.flagz.clone())
        } else {
            Router::new()
        })
        .merge(optional(
            handlers.system_log,
            system_logs::routes(PathBuf::from(SYSTEM_LOGS), options.journal.clone()),
            "/logs",
            "logs endpoint is disabled.",
        ))
        .merge(optional(
            handlers.profiling,
            profiling::routes(),
            "/debug/pprof",
            "profiling endpoint is disabled.",
        ))
        .merge(optional(
            handlers.debug_flags,
            debug_flags::routes(view),
            "/debug/flags",
            "flags endpoint is disabled.",
        ))
}

/// The responses of disabled debugging handlers.
pub(super) fn disabled() -> Router {
    let routes = Router::new();
    DEBUGGING.into_iter().fold(routes, |routes, base| {
        routes.merge(switched_off(base, "Debug endpoints are disabled."))
    })
}

/// Returns 405 with the reason for every request below a path.
fn switched_off(base: &str, reason: &'static str) -> Router {
    let answer = any(async move || error(StatusCode::METHOD_NOT_ALLOWED, reason));
    Router::new()
        .route(&format!("{base}/"), answer.clone())
        .route(&format!("{base}/{{*rest}}"), answer)
}
