//! Durations of pod starts.

use std::time::Duration;

use kubelet_metrics::{Collector, Exposition, Family, Histogram};

use crate::pod::start_latency::BUCKETS;

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
