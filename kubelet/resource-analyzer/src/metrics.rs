//! Metrics of volumes and logs, from the last snapshot.

use std::{borrow::Cow, collections::BTreeMap};

use kubelet_metrics::{DEFAULT_BUCKETS, Exposition, Family, Histogram};
use tokio::time::Instant;

use crate::usage::{Claim, Usages, VolumeUsage};

/// How long measurements of volumes take.
#[derive(Debug)]
pub(crate) struct Durations(Family<Histogram, 1>);

impl Default for Durations {
    fn default() -> Self {
        Self(Family::histogram(
            "kubelet_volume_metric_collection_duration_seconds",
            "[ALPHA] Duration in seconds to calculate volume stats",
            ["metric_source"],
            DEFAULT_BUCKETS,
        ))
    }
}

impl Durations {
    /// Records a measurement that has just ended. `source` is the way it was made, or the driver
    /// that made it.
    pub(crate) fn record(&self, source: &str, begun: Instant) {
        let histogram = self.0.with([Cow::Owned(source.to_owned())]);
        histogram.observe_duration(begun.elapsed());
    }

    pub(crate) fn collect(&self, page: &mut Exposition) {
        self.0.collect(page);
    }
}

type Value = fn(&VolumeUsage) -> Option<u64>;

/// The metrics of claims: names, help texts and values.
const OF_CLAIMS: [(&str, &str, Value); 7] = [
    (
        "kubelet_volume_stats_capacity_bytes",
        "[ALPHA] Capacity in bytes of the volume",
        |volume| Some(volume.bytes.total),
    ),
    (
        "kubelet_volume_stats_available_bytes",
        "[ALPHA] Number of available bytes in the volume",
        |volume| Some(volume.bytes.available),
    ),
    (
        "kubelet_volume_stats_used_bytes",
        "[ALPHA] Number of used bytes in the volume",
        |volume| Some(volume.bytes.used),
    ),
    (
        "kubelet_volume_stats_inodes",
        "[ALPHA] Maximum number of inodes in the volume",
        |volume| Some(volume.inodes.total),
    ),
    (
        "kubelet_volume_stats_inodes_free",
        "[ALPHA] Number of free inodes in the volume",
        |volume| Some(volume.inodes.available),
    ),
    (
        "kubelet_volume_stats_inodes_used",
        "[ALPHA] Number of used inodes in the volume",
        |volume| Some(volume.inodes.used),
    ),
    (
        "kubelet_volume_stats_health_status_abnormal",
        "[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume \
         is unhealthy, 0 indicates volume is healthy",
        |volume| volume.is_abnormal.map(u64::from),
    ),
];

/// Writes the usage of each claim, once even if several pods use it.
pub(crate) fn collect_claims(usages: &Usages, page: &mut Exposition) {
    let mut claims = BTreeMap::<&Claim, &VolumeUsage>::new();
    for volume in usages.values().flat_map(|pod| pod.volumes.values()) {
        if let Some(claim) = &volume.claim {
            claims.entry(claim).or_insert(volume);
        }
    }
    for (name, help, value) in OF_CLAIMS {
        let mut samples = claims
            .iter()
            .filter_map(|(claim, volume)| Some((claim, value(volume)?)))
            .peekable();
        if samples.peek().is_some() {
            page.family(name, "gauge", help);
        }
        for (claim, value) in samples {
            let labels = [
                ("namespace", claim.namespace.as_str()),
                ("persistentvolumeclaim", claim.name.as_str()),
            ];
            page.sample(name, &labels, value, None);
        }
    }
}

/// Writes what the logs of each container use.
pub(crate) fn collect_logs(usages: &Usages, page: &mut Exposition) {
    let name = "kubelet_container_log_filesystem_used_bytes";
    let mut is_first = true;
    for (uid, pod) in usages {
        let files = pod.files.iter();
        for (container, logs) in files.flat_map(|files| &files.container_logs) {
            if std::mem::take(&mut is_first) {
                let help = "[ALPHA] Bytes used by the container's logs on the filesystem.";
                page.family(name, "gauge", help);
            }
            let labels = [
                ("uid", uid.as_str()),
                ("namespace", pod.namespace.as_str()),
                ("pod", pod.name.as_str()),
                ("container", container.as_str()),
            ];
            page.sample(name, &labels, logs.bytes, None);
        }
    }
}
