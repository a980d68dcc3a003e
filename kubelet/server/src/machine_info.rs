//! `/spec/`: the machine's hardware.

use axum::{Router, http::StatusCode, routing::get};
use kubelet_machine_info::MachineReader;

use super::response::{error, json};

pub(super) fn routes(reader: MachineReader) -> Router {
    let answer = get(move || async move {
        let machine = match reader.read().await {
            Ok(machine) => machine,
            Err(panicked) => return error(StatusCode::INTERNAL_SERVER_ERROR, panicked),
        };
        match serde_json::to_string(&*machine) {
            Ok(text) => json(text),
            Err(fault) => error(StatusCode::INTERNAL_SERVER_ERROR, fault),
        }
    });
    Router::new()
        .route("/spec", answer.clone())
        .route("/spec/", answer)
}
