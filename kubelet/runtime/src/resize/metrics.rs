//! Metrics of resizes.

use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_metrics::{Counter, Exposition, Family, Gauge, Histogram};

use super::{ResizeRefusal, cpu_memory::CpuMemory};
use crate::RuntimeManager;

/// Buckets in milliseconds, as upstream.
const BUCKETS: &[f64] = &[
    10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 30_000.0, 60_000.0,
    120_000.0, 300_000.0, 600_000.0,
];

/// Why pending resizes are decided on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTrigger {
    /// Some time has passed.
    Periodic,
    /// A pod changed.
    PodUpdated,
    /// Pods were added.
    PodsAdded,
    /// A pod ended, and freed its resources.
    PodTerminated,
}

impl ResizeTrigger {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Periodic => "periodic_retry",
            Self::PodUpdated => "pod_updated",
            Self::PodsAdded => "pods_added",
            Self::PodTerminated => "pod_terminated",
        }
    }
}

/// The metrics that are not computed from the grants.
#[derive(Debug)]
pub(super) struct ResizeMetrics {
    requested: Family<Counter, 3>,
    infeasible: Family<Counter, 1>,
    accepted: Family<Counter, 1>,
    pub(super) durations: Family<Histogram, 1>,
}

impl Default for ResizeMetrics {
    fn default() -> Self {
        Self {
            requested: Family::counter(
                "kubelet_container_requested_resizes_total",
                "[ALPHA] Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
                ["resource", "requirement", "operation"],
            ),
            infeasible: Family::counter(
                "kubelet_pod_infeasible_resizes_total",
                "[ALPHA] Number of infeasible resizes for pods.",
                ["reason_detail"],
            ),
            accepted: Family::counter(
                "kubelet_pod_deferred_accepted_resizes_total",
                "[ALPHA] Cumulative number of resizes that were accepted after being deferred.",
                ["retry_trigger"],
            ),
            durations: Family::histogram(
                "kubelet_pod_resize_duration_milliseconds",
                "[ALPHA] Duration in milliseconds to actuate a pod resize",
                ["success"],
                BUCKETS,
            ),
        }
    }
}

impl ResizeMetrics {
    /// Counts a new refusal.
    pub(super) fn refused(&self, refusal: &ResizeRefusal) {
        if let ResizeRefusal::Infeasible { detail, .. } = refusal {
            self.infeasible.of([detail]).increment();
        }
    }

    /// Counts a resize that was deferred and then granted.
    pub(super) fn accepted(&self, trigger: ResizeTrigger) {
        self.accepted.of([trigger.as_str()]).increment();
    }

    fn count_requested(&self, old: &Pod, new: &Pod) {
        let resources = |container: &Container| CpuMemory::of(container.resources.as_ref());
        for container in resizable(new) {
            let Some(before) = resizable(old).find(|before| before.name == container.name) else {
                continue;
            };
            let (before, after) = (resources(before), resources(container));
            for (resource, requirement, before, after) in [
                (
                    "memory",
                    "requests",
                    before.memory_request,
                    after.memory_request,
                ),
                ("memory", "limits", before.memory_limit, after.memory_limit),
                ("cpu", "requests", before.cpu_request, after.cpu_request),
                ("cpu", "limits", before.cpu_limit, after.cpu_limit),
            ] {
                if let Some(operation) = operation(before, after) {
                    let labels = [resource, requirement, operation];
                    self.requested.of(labels).increment();
                }
            }
        }
    }
}

/// Containers whose resources may change: not init containers that run once.
fn resizable(pod: &Pod) -> impl Iterator<Item = &Container> {
    pod.spec.iter().flat_map(|spec| {
        let init = spec.init_containers.iter().flatten();
        let sidecars = init.filter(|one| one.restart_policy.as_deref() == Some("Always"));
        sidecars.chain(&spec.containers)
    })
}

fn operation(before: i64, after: i64) -> Option<&'static str> {
    match (before, after) {
        _ if before == after => None,
        (_, 0) => Some("remove"),
        (0, _) => Some("add"),
        _ if after < before => Some("decrease"),
        _ => Some("increase"),
    }
}

impl RuntimeManager {
    /// Counts the resizes that an update of a pod's spec requests.
    pub fn count_requested_resizes(&self, old: &Pod, new: &Pod) {
        self.grants.metrics.count_requested(old, new);
    }

    /// Writes the metrics of resizes.
    pub fn collect_resizes(&self, page: &mut Exposition) {
        let metrics = &self.grants.metrics;
        metrics.requested.collect(page);
        metrics.infeasible.collect(page);
        metrics.accepted.collect(page);
        metrics.durations.collect(page);
        let pending: Family<Gauge, 1> = Family::gauge(
            "kubelet_pod_pending_resizes",
            "[ALPHA] Number of pending resizes for pods.",
            ["reason"],
        );
        let (reasons, in_progress) = self.resizes_under_way();
        for reason in reasons {
            pending.with([reason.to_lowercase().into()]).increment();
        }
        pending.collect(page);
        page.gauge(
            "kubelet_pod_in_progress_resizes",
            "[ALPHA] Number of in-progress resizes for pods.",
            in_progress,
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(resources: &Value) -> Pod {
        let pod = json!({"spec": {
            "initContainers": [
                {"name": "once", "resources": resources},
                {"name": "sidecar", "restartPolicy": "Always", "resources": resources},
            ],
            "containers": [{"name": "c", "resources": resources}],
        }});
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn requests_are_counted_by_what_changes() {
        let metrics = ResizeMetrics::default();
        let before =
            pod(&json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}));
        let after = pod(
            &json!({"requests": {"cpu": "1500m", "memory": "1Mi"}, "limits": {"memory": "1Gi"}}),
        );
        metrics.count_requested(&before, &after);
        metrics.count_requested(&after, &after);
        let mut page = Exposition::default();
        metrics.requested.collect(&mut page);
        let text = page.into_text();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        let line = |resource: &str, requirement: &str, operation: &str| {
            format!(
                "kubelet_container_requested_resizes_total{{resource=\"{resource}\",\
                 requirement=\"{requirement}\",operation=\"{operation}\"}} 2"
            )
        };
        assert_eq!(
            lines,
            [
                line("cpu", "limits", "remove"),
                line("cpu", "requests", "increase"),
                line("memory", "limits", "add"),
                line("memory", "requests", "decrease"),
            ]
        );
    }
}
