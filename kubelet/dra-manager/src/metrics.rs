//! Metrics of dynamic resource allocation.

use std::{borrow::Cow, time::Duration};

use kubelet_metrics::{Exposition, Family, Histogram};
use kubelet_plugin_manager::status_code::go_name;
use tonic::Code;

/// Upstream's buckets, in seconds: 15 from 0.1 to 40.
const BUCKETS: &[f64] = &[
    0.1,
    0.1534127404634391,
    0.23535468936502524,
    0.36106407876409946,
    0.5539182980610752,
    0.8497812409839363,
    1.303672689737678,
    1.9999999999999993,
    3.068254809268781,
    4.707093787300503,
    7.221281575281985,
    11.0783659612215,
    16.995624819678717,
    26.07345379475355,
    39.99999999999997,
];

#[derive(Debug)]
pub(crate) struct Metrics {
    operations: Family<Histogram, 2>,
    calls: Family<Histogram, 3>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            operations: Family::histogram(
                "dra_operations_duration_seconds",
                "[ALPHA] Latency histogram in seconds for the duration of handling all \
                 ResourceClaims referenced by a pod when the pod starts or stops. Identified by \
                 the name of the operation (PrepareResources or UnprepareResources) and separated \
                 by the success of the operation. The number of failed operations is provided \
                 through the histogram's overall count.",
                ["operation_name", "is_error"],
                BUCKETS,
            ),
            calls: Family::histogram(
                "dra_grpc_operations_duration_seconds",
                "[ALPHA] Duration in seconds of the DRA gRPC operations",
                ["driver_name", "method_name", "grpc_status_code"],
                BUCKETS,
            ),
        }
    }
}

impl Metrics {
    pub(crate) fn operated(&self, operation: &'static str, failed: bool, duration: Duration) {
        let failed = if failed { "true" } else { "false" };
        let of = self.operations.of([operation, failed]);
        of.observe_duration(duration);
    }

    pub(crate) fn called(
        &self,
        driver: &str,
        method: &'static str,
        code: Code,
        duration: Duration,
    ) {
        let labels = [
            Cow::Owned(driver.to_owned()),
            Cow::Borrowed(method),
            Cow::Owned(go_name(code)),
        ];
        self.calls.with(labels).observe_duration(duration);
    }

    pub(crate) fn collect(&self, page: &mut Exposition) {
        self.operations.collect(page);
        self.calls.collect(page);
    }
}
