//! `/debug/pressure` and `/debug/garbage`, on the socket only.

use axum::{Router, http::StatusCode, response::Response, routing::get};
use serde::Serialize;

use super::{
    NodeView,
    reports::{GARBAGE_PATH, PRESSURE_PATH},
    response::{error, json},
};

pub(super) fn routes<V: NodeView>(view: V) -> Router {
    let node = view.clone();
    let pressure = move || async move { answer(&node.pressure()) };
    let garbage = move || async move {
        match view.garbage().await {
            Ok(report) => answer(&report),
            Err(reason) => error(
                StatusCode::INTERNAL_SERVER_ERROR,
                format_args!("cannot tell what would be removed: {reason}"),
            ),
        }
    };
    Router::new()
        .route(PRESSURE_PATH, get(pressure))
        .route(GARBAGE_PATH, get(garbage))
}

fn answer(report: &impl Serialize) -> Response {
    match serde_json::to_vec(report) {
        Ok(body) => json(body),
        Err(fault) => error(StatusCode::INTERNAL_SERVER_ERROR, fault),
    }
}
