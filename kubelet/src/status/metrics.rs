//! Metrics of statuses.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use kubelet_metrics::{Counter, Family, Histogram};

/// Buckets of the status sync duration in seconds, as upstream.
const SYNC_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

/// Reasons that are counted under their own names. Runtimes may have others.
const REASONS: [&str; 8] = [
    "Completed",
    "ContainerCannotRun",
    "ContainerStatusUnknown",
    "DeadlineExceeded",
    "Error",
    "OOMKilled",
    "StartError",
    "Unknown",
];

#[derive(Debug)]
pub(super) struct StatusMetrics {
    pub(super) sync_durations: Family<Histogram, 0>,
    pub(super) terminations: Family<Counter, 3>,
}

impl Default for StatusMetrics {
    fn default() -> Self {
        Self {
            sync_durations: Family::histogram(
                "kubelet_pod_status_sync_duration_seconds",
                "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
                [],
                SYNC_BUCKETS,
            ),
            terminations: Family::counter(
                "kubelet_terminated_containers_total",
                "[ALPHA] Cumulative number of container terminations.",
                ["container_type", "exit_code", "reason"],
            ),
        }
    }
}

impl StatusMetrics {
    /// Counts the containers that are terminated in `new`, but not in `old`. As upstream, a
    /// container that is restarted before its termination is in a status does not count.
    pub(super) fn count_terminations(&self, old: Option<&PodStatus>, new: &PodStatus) {
        type Statuses = fn(&PodStatus) -> &Option<Vec<ContainerStatus>>;
        let kinds: [(&'static str, Statuses); 3] = [
            ("init_container", |status| &status.init_container_statuses),
            ("container", |status| &status.container_statuses),
            ("ephemeral_container", |status| {
                &status.ephemeral_container_statuses
            }),
        ];
        for (kind, statuses) in kinds {
            for container in statuses(new).iter().flatten() {
                let Some(ended) = terminated(container) else {
                    continue;
                };
                let mut before = old.iter().flat_map(|old| statuses(old).iter().flatten());
                let before = before.find(|before| before.name == container.name);
                if before.and_then(terminated).is_some() {
                    continue;
                }
                let reason = ended.reason.as_deref().unwrap_or_default();
                let reason = REASONS.into_iter().find(|known| *known == reason);
                self.terminations
                    .with([
                        Cow::Borrowed(kind),
                        Cow::Owned(ended.exit_code.to_string()),
                        Cow::Borrowed(reason.unwrap_or("Other")),
                    ])
                    .increment();
            }
        }
    }
}

fn terminated(
    container: &ContainerStatus,
) -> Option<&k8s_openapi::api::core::v1::ContainerStateTerminated> {
    container.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use kubelet_metrics::Exposition;
    use serde_json::{Value, json};

    use super::*;

    fn status(state: &Value) -> PodStatus {
        let container = json!({
            "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": state,
        });
        serde_json::from_value(json!({"containerStatuses": [container]})).unwrap()
    }

    #[test]
    fn each_end_counts_once() {
        let metrics = StatusMetrics::default();
        let running = status(&json!({"running": {}}));
        let ended =
            |reason: &str| status(&json!({"terminated": {"exitCode": 137, "reason": reason}}));
        metrics.count_terminations(None, &running);
        metrics.count_terminations(Some(&running), &ended("OOMKilled"));
        metrics.count_terminations(Some(&ended("OOMKilled")), &ended("OOMKilled"));
        metrics.count_terminations(None, &ended("Whatever the runtime says"));
        let mut page = Exposition::default();
        metrics.terminations.collect(&mut page);
        let text = page.into_text();
        let line = |reason: &str| {
            format!(
                "kubelet_terminated_containers_total{{container_type=\"container\",\
                 exit_code=\"137\",reason=\"{reason}\"}} 1"
            )
        };
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines, [line("OOMKilled"), line("Other")]);
    }
}
