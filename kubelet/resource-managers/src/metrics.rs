//! Metrics of the managers.

use kubelet_metrics::{Counter, Exposition, Family, Histogram};

/// Exponential buckets in milliseconds, as upstream.
const MILLISECONDS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2,
];

/// The counters; gauges follow from the state.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) cpu_requests: Family<Counter, 0>,
    pub(crate) cpu_errors: Family<Counter, 0>,
    pub(crate) memory_requests: Family<Counter, 0>,
    pub(crate) memory_errors: Family<Counter, 0>,
    pub(crate) admissions: Family<Counter, 0>,
    pub(crate) admission_errors: Family<Counter, 0>,
    pub(crate) admission_durations: Family<Histogram, 0>,
    /// By scope and boundary.
    pub(crate) aligned: Family<Counter, 2>,
    pub(crate) not_aligned: Family<Counter, 2>,
}

impl Default for Metrics {
    fn default() -> Self {
        const ALIGNED: [&str; 2] = ["scope", "boundary"];
        Self {
            cpu_requests: Family::counter(
                "kubelet_cpu_manager_pinning_requests_total",
                "[ALPHA] The number of cpu core allocations which required pinning.",
                [],
            ),
            cpu_errors: Family::counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "[ALPHA] The number of cpu core allocations which required pinning failed.",
                [],
            ),
            memory_requests: Family::counter(
                "kubelet_memory_manager_pinning_requests_total",
                "[ALPHA] The number of memory pages allocations which required pinning.",
                [],
            ),
            memory_errors: Family::counter(
                "kubelet_memory_manager_pinning_errors_total",
                "[ALPHA] The number of memory pages allocations which required pinning that \
                 failed.",
                [],
            ),
            admissions: Family::counter(
                "kubelet_topology_manager_admission_requests_total",
                "[ALPHA] The number of admission requests where resources have to be aligned.",
                [],
            ),
            admission_errors: Family::counter(
                "kubelet_topology_manager_admission_errors_total",
                "[ALPHA] The number of admission request failures where resources could not be \
                 aligned.",
                [],
            ),
            admission_durations: Family::histogram(
                "kubelet_topology_manager_admission_duration_ms",
                "[ALPHA] Duration in milliseconds to serve a pod admission request.",
                [],
                MILLISECONDS,
            ),
            aligned: Family::counter(
                "kubelet_container_aligned_compute_resources_count",
                "[ALPHA] Cumulative number of aligned compute resources allocated to containers \
                 by alignment type.",
                ALIGNED,
            ),
            not_aligned: Family::counter(
                "kubelet_container_aligned_compute_resources_failure_count",
                "[ALPHA] Cumulative number of failures to allocate aligned compute resources to \
                 containers by alignment type.",
                ALIGNED,
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn collect(&self, page: &mut Exposition) {
        for counter in [
            &self.cpu_requests,
            &self.cpu_errors,
            &self.memory_requests,
            &self.memory_errors,
            &self.admissions,
            &self.admission_errors,
        ] {
            counter.collect(page);
        }
        self.admission_durations.collect(page);
        self.aligned.collect(page);
        self.not_aligned.collect(page);
    }
}
