//! `/metrics` and `/metrics/probes`.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_metrics::{Collector as _, Exposition};
use kubelet_pod_spec::identity::{self, PodUid};

use super::{Kubelet, Shared};
use crate::{
    active_pods::active_pods,
    pod_worker::{Stage, Working, if_true},
};

/// The values of the labels `config` and `static` of working pods, as upstream.
const CONFIGS: [(&str, &str); 5] = [
    ("desired", "true"),
    ("desired", ""),
    ("orphan", "true"),
    ("orphan", ""),
    ("runtime_only", "unknown"),
];

impl Kubelet {
    /// Writes the kubelet's metrics.
    pub(crate) fn collect(&self, page: &mut Exposition) {
        let parts = &*self.0;
        parts.cri.metrics().collect(page);
        parts.pleg.collect(page);
        parts.runtime.metrics().collect(page);
        parts.runtime.hooks().collect(page);
        parts.runtime.collect_resizes(page);
        parts.runtime.images().collect(page);
        parts.cgroups.collect(page);
        parts.volumes.collect(page);
        parts.orphans.collect(page);
        page.gauge(
            "kubelet_cgroup_version",
            "[ALPHA] cgroup version on the hosts.",
            if parts.runtime.machine().cgroup_v2 {
                2
            } else {
                1
            },
        );
        let name = "kubelet_metrics_provider";
        page.family(
            name,
            "gauge",
            "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
        );
        // Containers are measured by their cgroups, as cAdvisor does.
        page.sample(name, &[("provider", "cadvisor")], 1, None);
        parts.csi_drivers.collect(page);
        parts.analyzer.collect(page);
        parts.admission.collect(page);
        parts.managers.collect(page);
        if let Some(devices) = parts.managers.devices() {
            devices.collect(page);
        }
        parts.dra.collect(page);
        parts.pod_resources.collect(page);
        parts.eviction.collect(page);
        parts.images.collect(page);
        parts.starts.collect(page);
        parts.shutdown.record().collect(page);
        parts.statuses.collect_terminations(page);
        if parts.client.is_some() {
            parts.statuses.collect(page);
        }
        parts.workers.collect(page);
        parts.collect_pods(page);
    }

    /// Writes the probe metrics of current pods.
    pub(crate) fn collect_probes(&self, page: &mut Exposition) {
        self.0.probes.collect(page);
    }
}

impl Shared {
    /// Writes the numbers of pods of each kind.
    fn collect_pods(&self, page: &mut Exposition) {
        let pods = self.pods.pods();
        let working = self.workers.working();
        let of_kinds = |pods: &[Arc<Pod>]| {
            let mut counts = [0; 2];
            for pod in pods {
                counts[usize::from(identity::is_static(pod))] += 1;
            }
            counts
        };
        let active = active_pods(&self.pods, &self.statuses, &self.workers);
        let (desired, active) = (of_kinds(&pods), of_kinds(&active));
        for (name, help, counts) in [
            (
                "kubelet_desired_pods",
                "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
                desired,
            ),
            (
                "kubelet_active_pods",
                "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
                active,
            ),
        ] {
            page.family(name, "gauge", help);
            for (is_static, count) in [false, true].into_iter().zip(counts) {
                page.sample(name, &[("static", if_true(is_static))], count, None);
            }
        }
        if self.mirrors.is_some() {
            page.gauge(
                "kubelet_mirror_pods",
                "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
                self.pods.mirrors(),
            );
        }
        page.gauge(
            "kubelet_managed_ephemeral_containers",
            "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
            pods.iter()
                .filter_map(|pod| pod.spec.as_ref()?.ephemeral_containers.as_ref())
                .map(Vec::len)
                .sum::<usize>(),
        );
        let desired: HashSet<PodUid> = pods.iter().map(|pod| PodUid::of(pod)).collect();
        working_pods(&working, &desired, page);
    }
}

/// Writes the number of pods with a worker, by stage and desired configuration.
fn working_pods(working: &[Working], desired: &HashSet<PodUid>, page: &mut Exposition) {
    let mut counts: BTreeMap<(Stage, &str, &str), usize> = BTreeMap::new();
    for worker in working {
        let config = match worker.is_static {
            None => ("runtime_only", "unknown"),
            Some(is_static) if desired.contains(&worker.uid) => ("desired", if_true(is_static)),
            Some(is_static) => ("orphan", if_true(is_static)),
        };
        *counts
            .entry((worker.stage, config.0, config.1))
            .or_default() += 1;
    }
    let name = "kubelet_working_pods";
    page.family(
        name,
        "gauge",
        "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
    );
    for stage in [Stage::Sync, Stage::Terminating, Stage::Terminated] {
        for (config, is_static) in CONFIGS {
            let count = counts.get(&(stage, config, is_static));
            let labels = [
                ("lifecycle", stage.as_str()),
                ("config", config),
                ("static", is_static),
            ];
            page.sample(name, &labels, count.copied().unwrap_or(0), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn working_pods_are_told_by_who_wants_them() {
        let worker = |uid: &str, stage, is_static| Working {
            uid: PodUid::from(uid),
            stage,
            is_static,
        };
        let working = [
            worker("a", Stage::Sync, Some(true)),
            worker("b", Stage::Sync, Some(false)),
            worker("c", Stage::Terminating, Some(false)),
            worker("d", Stage::Terminated, None),
        ];
        let desired = ["a", "b"].map(PodUid::from).into();
        let mut page = Exposition::default();
        working_pods(&working, &desired, &mut page);
        let text = page.into_text();
        for (lifecycle, config, is_static, count) in [
            ("sync", "desired", "true", 1),
            ("sync", "desired", "", 1),
            ("terminating", "orphan", "", 1),
            ("terminated", "runtime_only", "unknown", 1),
            ("sync", "orphan", "true", 0),
        ] {
            let line = format!(
                "kubelet_working_pods{{lifecycle=\"{lifecycle}\",config=\"{config}\",static=\"{is_static}\"}} {count}\n"
            );
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }
}
