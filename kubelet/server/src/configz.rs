//! `/configz`: the configuration in effect.

use axum::{Router, routing::get};
use serde_json::Value;

use super::response::json;

pub(super) fn routes(configz: &Value) -> Router {
    let body = configz.to_string();
    Router::new().route("/configz", get(async move || json(body.clone())))
}
