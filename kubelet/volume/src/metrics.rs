//! How long operations on volumes take.

use std::{borrow::Cow, time::Duration};

use kubelet_metrics::{Exposition, Family, Histogram};

use super::world::Job;
use crate::spec::VolumeMode;

/// Seconds that operations take, as upstream's buckets.
const BUCKETS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
];

/// What the volume manager measures.
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
    /// An operation ended.
    pub(super) fn ended(&self, job: &Job, succeeded: bool, took: Duration) {
        let (plugin, operation) = match job {
            Job::SetUp { request, .. } => {
                let operation = match request.volume.mode {
                    VolumeMode::Filesystem => "volume_mount",
                    VolumeMode::Block => "map_volume",
                };
                (&request.volume.plugin, operation)
            }
            Job::TearDown { volume, .. } => {
                let operation = match volume.mode {
                    VolumeMode::Filesystem => "volume_unmount",
                    VolumeMode::Block => "unmap_volume",
                };
                (&volume.plugin, operation)
            }
            Job::Unstage(device) => (&device.plugin, "unmount_device"),
        };
        let status = if succeeded { "success" } else { "fail-unknown" };
        let labels = [
            Cow::Owned(plugin.clone()),
            Cow::Borrowed(operation),
            Cow::Borrowed(status),
            // No volume of a plugin in the tree is given to a CSI driver here.
            Cow::Borrowed("false"),
        ];
        self.operations.with(labels).observe_duration(took);
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        self.operations.collect(page);
    }
}
