//! Metrics of the directories of orphaned pods.

use std::sync::atomic::{AtomicUsize, Ordering};

use kubelet_metrics::{Collector, Exposition};

/// The orphaned pods that the last scan found.
#[derive(Debug, Default)]
pub(crate) struct OrphanMetrics {
    found: AtomicUsize,
    failed: AtomicUsize,
}

impl OrphanMetrics {
    /// A scan found this many.
    pub(super) fn scanned(&self, found: usize) {
        self.found.store(found, Ordering::Relaxed);
        self.failed.store(0, Ordering::Relaxed);
    }

    /// The directory of one of them cannot be removed.
    pub(super) fn failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }
}

impl Collector for OrphanMetrics {
    fn collect(&self, page: &mut Exposition) {
        page.gauge(
            "kubelet_orphan_pod_cleaned_volumes",
            "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
            self.found.load(Ordering::Relaxed),
        );
        page.gauge(
            "kubelet_orphan_pod_cleaned_volumes_errors",
            "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
            self.failed.load(Ordering::Relaxed),
        );
    }
}
