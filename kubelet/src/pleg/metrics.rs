//! Metrics of the PLEG.

use kubelet_metrics::{Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};

/// The metrics of the generator.
#[derive(Debug)]
pub(super) struct PlegMetrics {
    pub(super) relists: Family<Histogram, 0>,
    pub(super) intervals: Family<Histogram, 0>,
    pub(super) readings: Family<Histogram, 0>,
    pub(super) streams: Family<Counter, 0>,
    pub(super) stream_errors: Family<Counter, 0>,
    pub(super) event_latencies: Family<Histogram, 0>,
}

impl Default for PlegMetrics {
    fn default() -> Self {
        Self {
            relists: Family::histogram(
                "kubelet_pleg_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting pods in PLEG.",
                [],
                DEFAULT_BUCKETS,
            ),
            intervals: Family::histogram(
                "kubelet_pleg_relist_interval_seconds",
                "[ALPHA] Interval in seconds between relisting in PLEG.",
                [],
                DEFAULT_BUCKETS,
            ),
            readings: Family::histogram(
                "kubelet_pleg_pod_relist_duration_seconds",
                "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
                [],
                DEFAULT_BUCKETS,
            ),
            streams: Family::counter(
                "kubelet_evented_pleg_connection_success_count",
                "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
                [],
            ),
            stream_errors: Family::counter(
                "kubelet_evented_pleg_connection_error_count",
                "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
                [],
            ),
            event_latencies: Family::histogram(
                "kubelet_evented_pleg_connection_latency_seconds",
                "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
                [],
                DEFAULT_BUCKETS,
            ),
        }
    }
}

impl PlegMetrics {
    pub(super) fn collect(&self, page: &mut Exposition) {
        self.relists.collect(page);
        self.intervals.collect(page);
        self.readings.collect(page);
        self.streams.collect(page);
        self.stream_errors.collect(page);
        self.event_latencies.collect(page);
    }
}
