//! Metrics of pod workers.

use k8s_openapi::api::core::v1::Pod;
use kubelet_metrics::{Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};
use kubelet_pod_spec::identity;

/// Buckets of the number of containers of a pod.
const CONTAINERS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];

/// The metrics of all workers.
#[derive(Debug)]
pub(super) struct WorkerMetrics {
    /// By operation: `create`, `update`, `sync`, `kill` or `terminated`.
    pub(super) durations: Family<Histogram, 1>,
    pub(super) starts: Family<Histogram, 0>,
    containers: Family<Histogram, 0>,
    pub(super) orphans: Family<Counter, 0>,
    restarts: Family<Counter, 1>,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self {
            durations: Family::histogram(
                "kubelet_pod_worker_duration_seconds",
                "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
                ["operation_type"],
                DEFAULT_BUCKETS,
            ),
            starts: Family::histogram(
                "kubelet_pod_worker_start_duration_seconds",
                "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
                [],
                DEFAULT_BUCKETS,
            ),
            containers: Family::histogram(
                "kubelet_containers_per_pod_count",
                "[ALPHA] The number of containers per pod.",
                [],
                CONTAINERS,
            ),
            orphans: Family::counter(
                "kubelet_orphaned_runtime_pods_total",
                "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.",
                [],
            ),
            restarts: Family::counter(
                "kubelet_restarted_pods_total",
                "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
                ["static"],
            ),
        }
    }
}

impl WorkerMetrics {
    /// A worker starts the first sync of a pod.
    pub(super) fn started(&self, pod: &Pod) {
        let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
        let containers = u32::try_from(containers).unwrap_or(u32::MAX);
        self.containers.of([]).observe(containers.into());
    }

    /// A pod runs again after its end.
    pub(super) fn restarted(&self, pod: Option<&Pod>) {
        let is_static = pod.is_some_and(identity::is_static);
        self.restarts.of([if_true(is_static)]).increment();
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        self.durations.collect(page);
        self.starts.collect(page);
        self.containers.collect(page);
        self.orphans.collect(page);
        self.restarts.collect(page);
    }
}

/// Upstream's value of boolean labels: `true` or empty.
pub(crate) const fn if_true(yes: bool) -> &'static str {
    if yes { "true" } else { "" }
}

/// The stage of a pod's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// The pod is to run.
    Sync,
    /// The pod is to end.
    Terminating,
    /// No container of the pod runs.
    Terminated,
}

impl Stage {
    /// Upstream's name.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Sync => "sync",
            Self::Terminating => "terminating",
            Self::Terminated => "terminated",
        }
    }
}
