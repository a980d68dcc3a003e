//! `/stats/summary`: resource usage of the node and its pods, in the format of upstream's
//! `stats/v1alpha1`.

mod format;
mod summary;

use axum::{
    Router,
    extract::RawQuery,
    http::StatusCode,
    response::Response,
    routing::{MethodFilter, on},
};
use kubelet_stats::Depth;

use self::summary::Summary;
use super::{
    NodeView,
    response::{error, json},
};

/// A pod has about this much text.
const BYTES_PER_POD: usize = 4 * 1024;
/// The parameter that asks for CPU and memory only.
const ONLY_CPU_AND_MEMORY: &str = "only_cpu_and_memory";

pub(super) fn routes<V: NodeView>(view: V) -> Router {
    let methods = MethodFilter::GET.or(MethodFilter::POST);
    let answer = on(methods, move |RawQuery(query): RawQuery| async move {
        answer(&view, depth(query.as_deref().unwrap_or_default())).await
    });
    Router::new()
        .route("/stats/summary", answer.clone())
        .route("/stats/summary/", answer)
}

/// As upstream, only a single value `true` counts.
fn depth(query: &str) -> Depth {
    let pairs = query
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let values: Vec<&str> = pairs
        .filter(|(name, _)| *name == ONLY_CPU_AND_MEMORY)
        .map(|(_, value)| value)
        .collect();
    if values == ["true"] {
        Depth::CpuAndMemory
    } else {
        Depth::Everything
    }
}

async fn answer<V: NodeView>(view: &V, depth: Depth) -> Response {
    let failed = |reason: String| error(StatusCode::INTERNAL_SERVER_ERROR, reason);
    let stats = match view.stats(depth).await {
        Ok(stats) => stats,
        Err(fault) => return failed(format!("Internal Error: {fault}")),
    };
    if let Some(fault) = &stats.runtime_error {
        return failed(format!("Internal Error: failed to list pod stats: {fault}"));
    }
    let node = view.local_node();
    let summary = Summary::new(&node.name, &stats, &view.pod_usages(), depth);
    // Otherwise it would be copied as it grows.
    let mut text = Vec::with_capacity(BYTES_PER_POD * stats.pods.len());
    match serde_json::to_writer(&mut text, &summary) {
        Ok(()) => json(text),
        Err(fault) => failed(fault.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_value_asks_for_cpu_and_memory() {
        for (query, expected) in [
            ("", Depth::Everything),
            ("only_cpu_and_memory=true", Depth::CpuAndMemory),
            ("a=b&only_cpu_and_memory=true", Depth::CpuAndMemory),
            ("only_cpu_and_memory=TRUE", Depth::Everything),
            (
                "only_cpu_and_memory=true&only_cpu_and_memory=true",
                Depth::Everything,
            ),
            ("only_cpu_and_memory", Depth::Everything),
        ] {
            assert_eq!(depth(query), expected, "{query}");
        }
    }
}
