//! Metrics of probes, kept as long as their pods exist.

use std::{borrow::Cow, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_metrics::{Collector, Counter, DEFAULT_BUCKETS, Exposition, Family, Histogram};
use kubelet_pod_spec::identity;

use super::results::ProbeType;

/// Metrics of the probe workers.
#[derive(Debug)]
pub(super) struct ProbeMetrics {
    /// By type, result, container, pod, namespace and UID.
    results: Family<Counter, 6>,
    /// By type, container, pod and namespace.
    durations: Family<Histogram, 4>,
}

impl Default for ProbeMetrics {
    fn default() -> Self {
        Self {
            results: Family::counter(
                "prober_probe_total",
                "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
                [
                    "probe_type",
                    "result",
                    "container",
                    "pod",
                    "namespace",
                    "pod_uid",
                ],
            ),
            durations: Family::histogram(
                "prober_probe_duration_seconds",
                "[ALPHA] Duration in seconds for a probe response.",
                ["probe_type", "container", "pod", "namespace"],
                DEFAULT_BUCKETS,
            ),
        }
    }
}

/// The labels of one probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probing<'a> {
    pub(super) pod: &'a Pod,
    pub(super) container: &'a str,
    pub(super) kind: ProbeType,
}

impl Probing<'_> {
    /// Container name, pod name and namespace.
    fn place(&self) -> [String; 3] {
        let (name, namespace) = (identity::name(self.pod), identity::namespace(self.pod));
        [self.container, name, namespace].map(str::to_owned)
    }

    const fn probe_type(&self) -> &'static str {
        match self.kind {
            ProbeType::Liveness => "Liveness",
            ProbeType::Readiness => "Readiness",
            ProbeType::Startup => "Startup",
        }
    }
}

impl ProbeMetrics {
    /// Counts a conclusive result, and records the duration of a success only, as upstream.
    pub(super) fn probed(&self, probing: Probing<'_>, succeeded: bool, took: Duration) {
        let result = if succeeded { "successful" } else { "failed" };
        let uid = probing.pod.metadata.uid.clone().unwrap_or_default();
        let probe_type = probing.probe_type();
        let place: [Cow<'static, str>; 3] = probing.place().map(Cow::Owned);
        let [container, pod, namespace] = place;
        if succeeded {
            let labels = [
                Cow::Borrowed(probe_type),
                container.clone(),
                pod.clone(),
                namespace.clone(),
            ];
            self.durations.with(labels).observe_duration(took);
        }
        let labels = [
            Cow::Borrowed(probe_type),
            Cow::Borrowed(result),
            container,
            pod,
            namespace,
            Cow::Owned(uid),
        ];
        self.results.with(labels).increment();
    }

    /// Removes the metrics of a probe that ended.
    pub(super) fn forget(&self, probing: Probing<'_>) {
        let [container, pod, namespace] = probing.place();
        let kind = probing.probe_type();
        let uid = probing.pod.metadata.uid.as_deref().unwrap_or_default();
        let is_it = |labels: [&str; 4]| labels == [kind, &*container, &*pod, &*namespace];
        self.results
            .retain(|[kind, _, container, pod, namespace, pod_uid]| {
                **pod_uid != *uid || !is_it([&**kind, &**container, &**pod, &**namespace])
            });
        self.durations.retain(|[kind, container, pod, namespace]| {
            !is_it([&**kind, &**container, &**pod, &**namespace])
        });
    }
}

impl Collector for ProbeMetrics {
    fn collect(&self, page: &mut Exposition) {
        self.results.collect(page);
        self.durations.collect(page);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(metrics: &ProbeMetrics) -> String {
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        page.into_text()
    }

    #[test]
    fn probes_are_counted_until_they_are_forgotten() {
        let metrics = ProbeMetrics::default();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "uid-1"},
        }))
        .unwrap();
        let probing = |container, kind| Probing {
            pod: &pod,
            container,
            kind,
        };
        let took = Duration::from_millis(30);
        metrics.probed(probing("app", ProbeType::Liveness), true, took);
        metrics.probed(probing("app", ProbeType::Liveness), false, took);
        metrics.probed(probing("app", ProbeType::Readiness), true, took);
        let labels = "container=\"app\",pod=\"web\",namespace=\"default\"";
        let all = text(&metrics);
        for line in [
            format!(
                "prober_probe_total{{probe_type=\"Liveness\",result=\"successful\",{labels},pod_uid=\"uid-1\"}} 1\n"
            ),
            format!(
                "prober_probe_total{{probe_type=\"Liveness\",result=\"failed\",{labels},pod_uid=\"uid-1\"}} 1\n"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{probe_type=\"Liveness\",{labels},le=\"0.025\"}} 0\n"
            ),
            format!(
                "prober_probe_duration_seconds_bucket{{probe_type=\"Liveness\",{labels},le=\"0.05\"}} 1\n"
            ),
            format!("prober_probe_duration_seconds_count{{probe_type=\"Liveness\",{labels}}} 1\n"),
        ] {
            assert!(all.contains(&line), "{line} is not in {all}");
        }
        metrics.forget(probing("app", ProbeType::Liveness));
        let left = text(&metrics);
        assert!(!left.contains("Liveness"), "{left}");
        assert!(left.contains("Readiness"), "{left}");
        metrics.forget(probing("app", ProbeType::Readiness));
        assert_eq!(text(&metrics), "");
    }
}
