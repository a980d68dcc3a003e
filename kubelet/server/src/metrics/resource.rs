//! `/metrics/resource`: CPU and memory usage of node, pods and containers. metrics-server reads it
//! for `kubectl top` and autoscaling.

use kubelet_metrics::{Exposition, Labels};
use kubelet_pod_spec::identity;
use kubelet_stats::{ContainerStats, Depth, NodeStats, PodStats, Usage};
use tracing::warn;

use super::NodeView;

/// A value, with the time of measurement in nanoseconds since the epoch.
type Measured = Option<(f64, Option<i64>)>;

/// All available measurements. `resource_scrape_error` is 1 if some are missing.
pub(super) async fn metrics<V: NodeView>(view: &V) -> Exposition {
    let mut page = Exposition::default();
    let failed = match view.stats(Depth::CpuAndMemory).await {
        Ok(stats) => {
            write(&stats, &mut page);
            stats.runtime_error.is_some()
        }
        Err(error) => {
            warn!(%error, "cannot measure the node and its pods");
            true
        }
    };
    page.gauge(
        "resource_scrape_error",
        "1 if there was an error while getting container metrics, 0 otherwise",
        u8::from(failed),
    );
    page
}

fn write(stats: &NodeStats, page: &mut Exposition) {
    let node = &stats.node.usage;
    let mut of_node = |name, kind, help, measured: Measured| {
        if let Some((value, at)) = measured {
            page.family(name, kind, help);
            page.sample(name, &[], value, at);
        }
    };
    of_node(
        "node_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        cpu(node),
    );
    of_node(
        "node_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the node in bytes",
        working_set(node),
    );
    of_node(
        "node_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
        swap_usage(node),
    );
    write_containers(&stats.pods, page);
    write_pods(&stats.pods, page);
}

fn write_containers(pods: &[PodStats], page: &mut Exposition) {
    let containers: Vec<(Labels, &ContainerStats)> = pods
        .iter()
        .flat_map(|pod| {
            let (namespace, name) = (identity::namespace(&pod.pod), identity::name(&pod.pod));
            pod.containers.iter().map(move |container| {
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", namespace),
                    ("pod", name),
                ];
                (Labels::new(&labels), container)
            })
        })
        .collect();
    let mut family = |name, kind, help, value: fn(&ContainerStats) -> Measured| {
        let all = containers.iter();
        let measured = all.map(|(labels, container)| (labels, value(container)));
        write_family(page, (name, kind, help), measured);
    };
    family(
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        |container| cpu(&container.usage),
    );
    family(
        "container_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the container in bytes",
        |container| working_set(&container.usage),
    );
    family(
        "container_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
        |container| swap_usage(&container.usage),
    );
    family(
        "container_swap_limit_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
        |container| swap_limit(&container.usage),
    );
    family(
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
        |container| (container.started_at > 0).then(|| (container.started_at as f64 / 1e9, None)),
    );
}

fn write_pods(all: &[PodStats], page: &mut Exposition) {
    let pods: Vec<(Labels, &PodStats)> = all
        .iter()
        .map(|pod| {
            let (namespace, name) = (identity::namespace(&pod.pod), identity::name(&pod.pod));
            (Labels::new(&[("namespace", namespace), ("pod", name)]), pod)
        })
        .collect();
    let mut family = |name, kind, help, value: fn(&Usage) -> Measured| {
        let measured = pods.iter().map(|(labels, pod)| (labels, value(&pod.usage)));
        write_family(page, (name, kind, help), measured);
    };
    family(
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        cpu,
    );
    family(
        "pod_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the pod in bytes",
        working_set,
    );
    family(
        "pod_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
        swap_usage,
    );
}

/// Writes a metric, unless nothing has a value.
fn write_family<'a>(
    page: &mut Exposition,
    (name, kind, help): (&str, &str, &str),
    measured: impl Iterator<Item = (&'a Labels, Measured)>,
) {
    let mut has_begun = false;
    for (labels, measured) in measured {
        let Some((value, at)) = measured else {
            continue;
        };
        if !has_begun {
            page.family(name, kind, help);
            has_begun = true;
        }
        page.labelled_sample(name, labels, &[], value, at);
    }
}

fn cpu(usage: &Usage) -> Measured {
    let cpu = usage.cpu?;
    Some((cpu.total as f64 / 1e9, at(cpu.at)))
}

fn working_set(usage: &Usage) -> Measured {
    let memory = usage.memory?;
    Some((memory.working_set? as f64, at(memory.at)))
}

fn swap_usage(usage: &Usage) -> Measured {
    Some((usage.swap?.usage as f64, at(usage.memory?.at)))
}

fn swap_limit(usage: &Usage) -> Measured {
    let swap = usage.swap?;
    let limit = swap.available?.saturating_add(swap.usage);
    Some((limit as f64, at(usage.memory?.at)))
}

/// Without a time of measurement, the time of the scrape applies.
fn at(nanoseconds: i64) -> Option<i64> {
    (nanoseconds > 0).then_some(nanoseconds)
}
