//! Durations of pod starts.

use std::time::Duration;

use kubelet_metrics::{Collector, Exposition, Family, Histogram};

/// Buckets in seconds, as upstream.
const BUCKETS: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0,
    300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

/// The metric of pod start durations.
#[derive(Debug)]
pub(crate) struct PodStarts(Family<Histogram, 0>);

impl Default for PodStarts {
    fn default() -> Self {
        Self(Family::histogram(
            "kubelet_pod_start_duration_seconds",
            "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
            [],
            BUCKETS,
        ))
    }
}

impl PodStarts {
    /// A pod started to run this long after it was first seen.
    pub(super) fn observe(&self, took: Duration) {
        self.0.of([]).observe_duration(took);
    }
}

impl Collector for PodStarts {
    fn collect(&self, page: &mut Exposition) {
        self.0.collect(page);
    }
}
