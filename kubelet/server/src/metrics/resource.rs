//! `/metrics/resource`: CPU and memory usage of node, pods and containers. metrics-server reads it
//! for `kubectl top` and autoscaling.

use cri_proto::runtime::v1::{CpuUsage, MemoryUsage, PodSandboxStats, UInt64Value};
use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::labels;
use kubelet_host::repeatable::blocking;
use kubelet_metrics::Exposition;
use kubelet_pod_spec::identity::PodUid;
use tracing::warn;

use super::NodeView;
use crate::stats::node::NodeUsage;

/// The labels, the value, and the time of measurement in nanoseconds since the epoch; 0 if unknown.
type Sample = (Vec<(&'static str, String)>, f64, i64);

#[derive(Default)]
struct Families {
    container_cpu: Vec<Sample>,
    container_memory: Vec<Sample>,
    container_start: Vec<Sample>,
    pod_cpu: Vec<Sample>,
    pod_memory: Vec<Sample>,
}

/// All available measurements. `resource_scrape_error` is 1 if some are missing.
pub(super) async fn metrics<V: NodeView>(view: &V) -> Exposition {
    let root_dir = view.local_node().root_dir.clone();
    let node = match blocking(move || NodeUsage::read(&root_dir)).await {
        Ok(Ok(usage)) => Some(usage),
        _ => None,
    };
    let (stats, mut failed) = match view.cri().pod_stats().await {
        Ok(stats) => (stats, false),
        Err(error) => {
            warn!(%error, "cannot get pod stats from the runtime");
            (Vec::new(), true)
        }
    };
    failed |= node.is_none();
    let pods = view.pods();
    let mut families = Families::default();
    for stats in &stats {
        families.add(stats, &pods);
    }

    let mut metrics = Exposition::default();
    if let Some(node) = node {
        let at = i64::try_from(node.at.as_nanosecond()).ok();
        let (cpu, memory) = (
            "node_cpu_usage_seconds_total",
            "node_memory_working_set_bytes",
        );
        let help = "Cumulative cpu time consumed by the node in core-seconds";
        metrics.family(cpu, "counter", help);
        metrics.sample(cpu, &[], seconds(node.cpu_nanoseconds), at);
        let help = "Current working set of the node in bytes";
        metrics.family(memory, "gauge", help);
        metrics.sample(memory, &[], node.memory_working_set, at);
    }
    for (name, kind, help, samples) in [
        (
            "container_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the container in core-seconds",
            families.container_cpu,
        ),
        (
            "container_memory_working_set_bytes",
            "gauge",
            "Current working set of the container in bytes",
            families.container_memory,
        ),
        (
            "container_start_time_seconds",
            "gauge",
            "Start time of the container since unix epoch in seconds",
            families.container_start,
        ),
        (
            "pod_cpu_usage_seconds_total",
            "counter",
            "Cumulative cpu time consumed by the pod in core-seconds",
            families.pod_cpu,
        ),
        (
            "pod_memory_working_set_bytes",
            "gauge",
            "Current working set of the pod in bytes",
            families.pod_memory,
        ),
    ] {
        if samples.is_empty() {
            continue;
        }
        metrics.family(name, kind, help);
        for (labels, value, at) in samples {
            let labels: Vec<(&str, &str)> =
                labels.iter().map(|(name, text)| (*name, &**text)).collect();
            // Without a time of measurement, the time of the scrape applies.
            metrics.sample(name, &labels, value, (at > 0).then_some(at));
        }
    }
    let (name, help) = (
        "resource_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    metrics.family(name, "gauge", help);
    metrics.sample(name, &[], u8::from(failed), None);
    metrics
}

impl Families {
    fn add(&mut self, stats: &PodSandboxStats, pods: &[Pod]) {
        let Some(metadata) = stats.attributes.as_ref().and_then(|a| a.metadata.as_ref()) else {
            return;
        };
        let of_pod = || {
            vec![
                ("namespace", metadata.namespace.clone()),
                ("pod", metadata.name.clone()),
            ]
        };
        let linux = stats.linux.clone().unwrap_or_default();
        for container in &linux.containers {
            let Some(attributes) = &container.attributes else {
                continue;
            };
            let Some(name) = attributes.labels.get(labels::CONTAINER_NAME) else {
                continue;
            };
            let labels = || {
                let mut labels = of_pod();
                labels.insert(0, ("container", name.clone()));
                labels
            };
            push(&mut self.container_cpu, labels(), cpu(&container.cpu));
            push(
                &mut self.container_memory,
                labels(),
                memory(&container.memory),
            );
            let started = started(pods, &metadata.uid, name);
            push(
                &mut self.container_start,
                labels(),
                started.map(|at| (at, 0)),
            );
        }
        push(&mut self.pod_cpu, of_pod(), cpu(&linux.cpu));
        push(&mut self.pod_memory, of_pod(), memory(&linux.memory));
    }
}

fn push(
    family: &mut Vec<Sample>,
    labels: Vec<(&'static str, String)>,
    measured: Option<(f64, i64)>,
) {
    if let Some((value, at)) = measured {
        family.push((labels, value, at));
    }
}

fn cpu(usage: &Option<CpuUsage>) -> Option<(f64, i64)> {
    let usage = usage.as_ref()?;
    let UInt64Value { value } = usage.usage_core_nano_seconds?;
    Some((seconds(value), usage.timestamp))
}

fn memory(usage: &Option<MemoryUsage>) -> Option<(f64, i64)> {
    let usage = usage.as_ref()?;
    let UInt64Value { value } = usage.working_set_bytes?;
    // Exact up to 8 PiB.
    Some((value as f64, usage.timestamp))
}

/// The start time of a running container, in seconds since the epoch.
fn started(pods: &[Pod], uid: &str, container: &str) -> Option<f64> {
    let pod = pods.iter().find(|pod| PodUid::of(pod).as_str() == uid)?;
    let status = pod.status.as_ref()?;
    let all = status.container_statuses.iter().flatten();
    let init = status.init_container_statuses.iter().flatten();
    let found = all.chain(init).find(|status| status.name == container)?;
    let at = found
        .state
        .as_ref()?
        .running
        .as_ref()?
        .started_at
        .as_ref()?;
    Some(at.0.as_second() as f64)
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}
