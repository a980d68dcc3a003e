//! Metrics of device plugins.

use kubelet_metrics::{Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};

#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) registrations: Family<Counter, 1>,
    pub(crate) allocations: Family<Histogram, 1>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            registrations: Family::counter(
                "kubelet_device_plugin_registration_total",
                "[ALPHA] Cumulative number of device plugin registrations. Broken down by resource \
                 name.",
                ["resource_name"],
            ),
            allocations: Family::histogram(
                "kubelet_device_plugin_alloc_duration_seconds",
                "[ALPHA] Duration in seconds to serve a device plugin Allocation request. Broken \
                 down by resource name.",
                ["resource_name"],
                DEFAULT_BUCKETS,
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn collect(&self, page: &mut Exposition) {
        self.registrations.collect(page);
        self.allocations.collect(page);
    }
}
