//! Metrics of evictions.

use std::time::Duration;

use jiff::Timestamp;
use kubelet_host::clock;
use kubelet_metrics::{Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};

/// The instruments.
#[derive(Debug)]
pub(crate) struct EvictionMetrics {
    evictions: Family<Counter, 1>,
    stats_age: Family<Histogram, 1>,
}

impl Default for EvictionMetrics {
    fn default() -> Self {
        Self {
            evictions: Family::counter(
                "kubelet_evictions",
                "[ALPHA] Cumulative number of pod evictions by eviction signal",
                ["eviction_signal"],
            ),
            stats_age: Family::histogram(
                "kubelet_eviction_stats_age_seconds",
                "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
                ["eviction_signal"],
                DEFAULT_BUCKETS,
            ),
        }
    }
}

impl EvictionMetrics {
    /// Counts an eviction.
    pub(crate) fn evicted(&self, signal: &'static str) {
        self.evictions.of([signal]).increment();
    }

    /// Records the age of the measurement that an eviction is based on.
    pub(crate) fn measured(&self, signal: &'static str, at: Timestamp) {
        let age = clock::now().duration_since(at);
        let age = Duration::try_from(age).unwrap_or_default();
        self.stats_age.of([signal]).observe_duration(age);
    }

    pub(crate) fn collect(&self, page: &mut Exposition) {
        self.evictions.collect(page);
        self.stats_age.collect(page);
    }
}
