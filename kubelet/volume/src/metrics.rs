//! Durations of volume operations.

use std::{borrow::Cow, time::Duration};

use kubelet_metrics::{Exposition, Family, Histogram};

use super::state_of_world::VolumeOperation;
use crate::spec::VolumeMode;

/// Buckets in seconds, as upstream.
pub(super) const BUCKETS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// Metrics of the volume manager.
#[derive(Debug)]
pub(super) struct StorageMetrics {
    operations: Family<Histogram, 4>,
}

impl Default for StorageMetrics {
    fn default() -> Self {
        Self {
            operations: Family::histogram(
                "storage_operation_duration_seconds",
                "[ALPHA] Storage operation duration",
                ["volume_plugin", "operation_name", "status", "migrated"],
                BUCKETS,
            ),
        }
    }
}

impl StorageMetrics {
    /// Records a finished operation.
    pub(super) fn ended(&self, job: &VolumeOperation, succeeded: bool, took: Duration) {
        let (plugin, operation, migrated) = match job {
            VolumeOperation::SetUp { request, .. } => {
                let operation = match request.volume.mode {
                    VolumeMode::Filesystem => "volume_mount",
                    VolumeMode::Block => "map_volume",
                };
                (&request.volume.plugin, operation, request.spec.migrated)
            }
            VolumeOperation::TearDown { volume, .. } => {
                let operation = match volume.mode {
                    VolumeMode::Filesystem => "volume_unmount",
                    VolumeMode::Block => "unmap_volume",
                };
                (&volume.plugin, operation, false)
            }
            VolumeOperation::Unstage(device) => (&device.plugin, "unmount_device", false),
        };
        let status = if succeeded { "success" } else { "fail-unknown" };
        let labels = [
            Cow::Owned(plugin.clone()),
            Cow::Borrowed(operation),
            Cow::Borrowed(status),
            Cow::Borrowed(if migrated { "true" } else { "false" }),
        ];
        self.operations.with(labels).observe_duration(took);
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        self.operations.collect(page);
    }
}
