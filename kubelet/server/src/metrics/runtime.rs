//! `/metrics/cadvisor`: the runtime's own metrics of sandboxes and containers.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{Metric, MetricType};
use kubelet_cri_client::CriError;
use kubelet_metrics::Exposition;

use super::NodeView;

/// The runtime's metrics, with its own names, help texts and labels.
pub(super) async fn metrics<V: NodeView>(view: &V) -> Result<Exposition, CriError> {
    let cri = view.cri();
    let (descriptors, sandboxes) = tokio::try_join!(
        cri.list_metric_descriptors(),
        cri.list_pod_sandbox_metrics()
    )?;
    let mut by_name: BTreeMap<&str, Vec<&Metric>> = BTreeMap::new();
    for sandbox in &sandboxes {
        let containers = sandbox.container_metrics.iter();
        let of_containers = containers.flat_map(|container| &container.metrics);
        for metric in sandbox.metrics.iter().chain(of_containers) {
            by_name.entry(&metric.name).or_default().push(metric);
        }
    }
    let mut metrics = Exposition::default();
    for descriptor in &descriptors {
        let Some(values) = by_name.get(descriptor.name.as_str()) else {
            continue;
        };
        let kind = match values.first().map(|metric| metric.metric_type()) {
            Some(MetricType::Counter) => "counter",
            _ => "gauge",
        };
        metrics.family(&descriptor.name, kind, &descriptor.help);
        for metric in values {
            // Without a value for each key, the labels cannot be named.
            if metric.label_values.len() != descriptor.label_keys.len() {
                continue;
            }
            let keys = descriptor.label_keys.iter().map(String::as_str);
            let labels: Vec<(&str, &str)> = keys
                .zip(metric.label_values.iter().map(String::as_str))
                .collect();
            let value = metric.value.as_ref().map_or(0, |value| value.value);
            let at = (metric.timestamp > 0).then_some(metric.timestamp);
            metrics.sample(&descriptor.name, &labels, value, at);
        }
    }
    Ok(metrics)
}
