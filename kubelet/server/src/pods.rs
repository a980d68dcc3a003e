//! `/pods` and `/runningpods/`: lists of pods, as the API's `PodList`.

use axum::{Router, http::StatusCode, response::Response, routing::get};
use k8s_openapi::{
    api::core::v1::{Pod, PodSpec, PodStatus},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;

use super::{
    NodeView,
    response::{error, json},
};

/// `/pods`: the pods assigned to this node.
pub(super) fn routes<V: NodeView>(view: V) -> Router {
    let pods = move || async move { pod_list(&view.pods()) };
    Router::new()
        .route("/pods", get(pods.clone()))
        .route("/pods/", get(pods))
}

/// `/runningpods/`: the pods that the runtime runs.
pub(super) fn running_routes<V: NodeView>(view: V) -> Router {
    let running = move || async move {
        match view.running_pods().await {
            Ok(pods) => pod_list(&pods),
            Err(reason) => error(
                StatusCode::INTERNAL_SERVER_ERROR,
                format_args!("cannot list the running pods: {reason}"),
            ),
        }
    };
    Router::new()
        .route("/runningpods", get(running.clone()))
        .route("/runningpods/", get(running))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PodList<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Empty {}

/// A pod in a list. Only the list itself has a kind and an API version.
#[derive(Serialize)]
struct Item<'a> {
    metadata: &'a ObjectMeta,
    spec: &'a Option<PodSpec>,
    status: &'a Option<PodStatus>,
}

fn pod_list(pods: &[Pod]) -> Response {
    let list = PodList {
        kind: "PodList",
        api_version: "v1",
        metadata: Empty {},
        items: pods
            .iter()
            .map(|pod| Item {
                metadata: &pod.metadata,
                spec: &pod.spec,
                status: &pod.status,
            })
            .collect(),
    };
    match serde_json::to_vec(&list) {
        Ok(body) => json(body),
        Err(fault) => error(
            StatusCode::INTERNAL_SERVER_ERROR,
            format_args!("cannot write the pods: {fault}"),
        ),
    }
}
