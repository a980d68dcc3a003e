//! `/metrics` and the pages below it, in Prometheus' text format.

mod cadvisor;
mod gzip;
mod http;
mod process;
mod resource;
mod slis;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderValue, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use kubelet_host::repeatable::blocking;
use kubelet_machine_info::MachineReader;
use kubelet_metrics::{Collector, Exposition};
use tracing::warn;

use self::process::Process;
pub(super) use self::{
    http::{HttpMetrics, ServerType, Serving, route},
    slis::HealthResults,
};
use super::{NodeView, response::error};

/// Collectors in addition to the node's own.
pub(super) type Collectors = Arc<[Arc<dyn Collector>]>;

pub(super) fn routes<V: NodeView>(
    view: V,
    collectors: Collectors,
    machine: MachineReader,
    health: HealthResults,
) -> Router {
    let own = {
        let view = view.clone();
        move || async move { page(own(&view, &collectors).await) }
    };
    let probes = {
        let view = view.clone();
        move || async move { page(probes(&view).await) }
    };
    let resource = {
        let view = view.clone();
        move || async move { page(resource::metrics(&view).await) }
    };
    let cadvisor = move || async move {
        match cadvisor::metrics(&view, &machine).await {
            Ok(metrics) => page(metrics),
            Err(fault) => error(StatusCode::INTERNAL_SERVER_ERROR, fault),
        }
    };
    Router::new()
        .route("/metrics", get(own))
        .route("/metrics/probes", get(probes))
        .route("/metrics/resource", get(resource))
        .route("/metrics/cadvisor", get(cadvisor))
        .merge(slis::routes(health))
        .layer(middleware::from_fn(gzip::compress))
}

/// The kubelet's own metrics.
async fn own<V: NodeView>(view: &V, collectors: &Collectors) -> Exposition {
    let mut metrics = Exposition::default();
    process::build_info(&mut metrics);
    let name = "kubelet_node_name";
    let help = "[ALPHA] The node's name. The count is always 1.";
    metrics.family(name, "gauge", help);
    let local_node = view.local_node();
    let labels = [("node", local_node.name.as_str())];
    metrics.sample(name, &labels, 1, None);
    view.collect(&mut metrics);
    for collector in collectors.iter() {
        collector.collect(&mut metrics);
    }
    if let Some(process) = this_process().await {
        process.collect(&mut metrics);
    }
    metrics
}

/// The metrics of the probes.
async fn probes<V: NodeView>(view: &V) -> Exposition {
    let mut metrics = Exposition::default();
    view.collect_probes(&mut metrics);
    if let Some(process) = this_process().await {
        process.collect_start(&mut metrics);
    }
    metrics
}

async fn this_process() -> Option<Process> {
    match blocking(Process::read).await {
        Ok(Ok(process)) => Some(process),
        Ok(Err(error)) => {
            warn!(%error, "cannot read the process metrics");
            None
        }
        // It panicked, which is logged already.
        Err(_) => None,
    }
}

fn page(metrics: Exposition) -> Response {
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, text)], metrics.into_text()).into_response()
}
