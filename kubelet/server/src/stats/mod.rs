//! `/stats/summary`: resource usage of the node and its pods, in the format of upstream's
//! `stats/v1alpha1`.

pub(super) mod node;
mod summary;

use std::sync::Arc;

use axum::{Router, http::StatusCode, response::Response, routing::any};
use kubelet_host::repeatable::blocking;
use node::NodeUsage;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    NodeView,
    response::{error, json},
};

/// The node's total CPU time at the last request, for the current usage.
type LastUsage = Arc<Mutex<Option<(Instant, u64)>>>;

pub(super) fn routes<V: NodeView>(view: V) -> Router {
    let last = LastUsage::default();
    let answer = any(move || async move { answer(&view, &last).await });
    Router::new()
        .route("/stats/summary", answer.clone())
        .route("/stats/summary/", answer)
}

async fn answer<V: NodeView>(view: &V, last: &LastUsage) -> Response {
    let failed = |reason: String| error(StatusCode::INTERNAL_SERVER_ERROR, reason);
    let local_node = view.local_node();
    let root_dir = local_node.root_dir.clone();
    let usage = match blocking(move || NodeUsage::read(&root_dir)).await {
        Ok(Ok(usage)) => usage,
        Ok(Err(fault)) => return failed(format!("cannot read the node's usage: {fault}")),
        Err(panicked) => return failed(panicked.to_string()),
    };
    let stats = match view.cri().pod_stats().await {
        Ok(stats) => stats,
        Err(fault) => return failed(format!("failed to list pod stats: {fault}")),
    };
    let nano_cores = nano_cores(last, usage.cpu_nanoseconds);
    let node = summary::node(&local_node.name, &usage, nano_cores);
    json(summary::summary(node, &stats, &view.pods()).to_string())
}

/// Current CPU usage in nanocores; `None` at the first request.
fn nano_cores(last: &LastUsage, total: u64) -> Option<u64> {
    let now = Instant::now();
    let (then, before) = last.lock().replace((now, total))?;
    let nanos = u64::try_from((now - then).as_nanos()).ok()?;
    let used = u128::from(total.checked_sub(before)?);
    u64::try_from((used * 1_000_000_000).checked_div(u128::from(nanos))?).ok()
}
