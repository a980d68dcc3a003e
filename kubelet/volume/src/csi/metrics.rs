//! Durations of calls to drivers.

use std::{borrow::Cow, time::Duration};

use kubelet_metrics::{Exposition, Family, Histogram};
use kubelet_plugin_manager::status_code::go_name;
use tonic::Code;

use crate::metrics::BUCKETS;

/// Metrics of the calls to all drivers.
#[derive(Debug)]
pub(super) struct CsiMetrics {
    operations: Family<Histogram, 4>,
}

impl Default for CsiMetrics {
    fn default() -> Self {
        Self {
            operations: Family::histogram(
                "csi_operations_seconds",
                "[ALPHA] Container Storage Interface operation duration with gRPC error code \
                 status total",
                ["driver_name", "method_name", "grpc_status_code", "migrated"],
                BUCKETS,
            ),
        }
    }
}

impl CsiMetrics {
    /// Records a call of the node service.
    pub(super) fn called(
        &self,
        driver: &str,
        migrated: bool,
        rpc: &str,
        code: Code,
        took: Duration,
    ) {
        let labels = [
            Cow::Owned(driver.to_owned()),
            Cow::Owned(format!("/csi.v1.Node/{rpc}")),
            Cow::Owned(go_name(code)),
            Cow::Borrowed(if migrated { "true" } else { "false" }),
        ];
        self.operations.with(labels).observe_duration(took);
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        self.operations.collect(page);
    }
}
