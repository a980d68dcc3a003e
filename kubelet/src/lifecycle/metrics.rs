//! Metrics of rejections and preemptions.

use std::borrow::Cow;

use kubelet_metrics::{Counter, Exposition, Family};

/// Reasons that are counted separately, as upstream; others are grouped.
const REASONS: [&str; 16] = [
    "AppArmor",
    "Evicted",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "VolumeAttachmentLimitExceeded",
];

/// The counters.
#[derive(Debug)]
pub(super) struct AdmissionMetrics {
    rejections: Family<Counter, 1>,
    preemptions: Family<Counter, 1>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        Self {
            rejections: Family::counter(
                "kubelet_admission_rejections_total",
                "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
                ["reason"],
            ),
            preemptions: Family::counter(
                "kubelet_preemptions",
                "[ALPHA] Cumulative number of pod preemptions by preemption resource",
                ["preemption_signal"],
            ),
        }
    }
}

impl AdmissionMetrics {
    /// Counts a rejection.
    pub(super) fn rejected(&self, reason: &str) {
        let mut known = REASONS.into_iter();
        let reason = match known.find(|known| *known == reason) {
            Some(known) => known,
            None if reason.starts_with("OutOf") => "OutOfExtendedResources",
            None => "Other",
        };
        self.rejections.of([reason]).increment();
    }

    /// Counts the preempted pods for a resource of the node.
    pub(super) fn preempted(&self, resource: String, victims: usize) {
        let victims = u64::try_from(victims).unwrap_or(u64::MAX);
        self.preemptions.with([Cow::Owned(resource)]).add(victims);
    }

    pub(super) fn collect(&self, page: &mut Exposition) {
        self.rejections.collect(page);
        self.preemptions.collect(page);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_counted_by_reasons_that_are_known() {
        let metrics = AdmissionMetrics::default();
        for reason in ["OutOfcpu", "OutOfcpu", "OutOfexample.com/gpu", "Whatever"] {
            metrics.rejected(reason);
        }
        metrics.preempted("memory".to_owned(), 2);
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let text = page.into_text();
        for line in [
            "kubelet_admission_rejections_total{reason=\"OutOfcpu\"} 2\n",
            "kubelet_admission_rejections_total{reason=\"OutOfExtendedResources\"} 1\n",
            "kubelet_admission_rejections_total{reason=\"Other\"} 1\n",
            "kubelet_preemptions{preemption_signal=\"memory\"} 2\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
    }
}
