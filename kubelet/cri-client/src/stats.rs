//! What the runtime measures.

use std::{cmp::max, collections::BTreeMap};

use cri_proto::runtime::v1::{
    ContainerStats, CpuUsage, LinuxPodSandboxStats, MemoryUsage, PodSandboxAttributes,
    PodSandboxMetadata, PodSandboxStats, UInt64Value,
};
use tracing::debug;

use super::{CriClient, CriError};
use crate::labels;

impl CriClient {
    /// What every pod uses, and each of its containers. Of a runtime that measures
    /// containers alone (containerd 1.6, where pods have no cgroups of their own) a pod uses
    /// what its containers use together.
    ///
    /// # Errors
    /// The runtime measures nothing.
    pub async fn pod_stats(&self) -> Result<Vec<PodSandboxStats>, CriError> {
        let error = match self.list_pod_sandbox_stats().await {
            Ok(stats) => return Ok(stats),
            Err(error) => error,
        };
        match self.container_stats().await {
            Ok(stats) => {
                debug!(%error, "the runtime has no pod stats; summing up container stats");
                Ok(of_containers(stats))
            }
            Err(_) => Err(error),
        }
    }
}

/// The pods of these containers. Those that have ended, which nothing is measured of, are left
/// out.
fn of_containers(stats: Vec<ContainerStats>) -> Vec<PodSandboxStats> {
    let mut pods = BTreeMap::<String, PodSandboxStats>::new();
    for container in stats {
        let is_running = container.cpu.is_some() || container.memory.is_some();
        let Some(attributes) = container.attributes.as_ref().filter(|_| is_running) else {
            continue;
        };
        let label = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
        let uid = label(labels::POD_UID);
        if uid.is_empty() {
            continue;
        }
        let pod = pods.entry(uid.clone()).or_insert_with(|| PodSandboxStats {
            attributes: Some(PodSandboxAttributes {
                metadata: Some(PodSandboxMetadata {
                    name: label(labels::POD_NAME),
                    namespace: label(labels::POD_NAMESPACE),
                    uid,
                    ..PodSandboxMetadata::default()
                }),
                ..PodSandboxAttributes::default()
            }),
            linux: Some(LinuxPodSandboxStats::default()),
            ..PodSandboxStats::default()
        });
        let linux = pod.linux.get_or_insert_default();
        linux.cpu = match (linux.cpu.take(), &container.cpu) {
            (Some(a), Some(b)) => Some(CpuUsage {
                timestamp: max(a.timestamp, b.timestamp),
                usage_core_nano_seconds: sum(a.usage_core_nano_seconds, b.usage_core_nano_seconds),
                usage_nano_cores: sum(a.usage_nano_cores, b.usage_nano_cores),
                ..CpuUsage::default()
            }),
            (a, b) => a.or(*b),
        };
        linux.memory = match (linux.memory.take(), &container.memory) {
            (Some(a), Some(b)) => Some(MemoryUsage {
                timestamp: max(a.timestamp, b.timestamp),
                working_set_bytes: sum(a.working_set_bytes, b.working_set_bytes),
                usage_bytes: sum(a.usage_bytes, b.usage_bytes),
                rss_bytes: sum(a.rss_bytes, b.rss_bytes),
                page_faults: sum(a.page_faults, b.page_faults),
                major_page_faults: sum(a.major_page_faults, b.major_page_faults),
                ..MemoryUsage::default()
            }),
            // The available memory of a container does not apply to the pod.
            (a, b) => a.or(*b).map(|usage| MemoryUsage {
                available_bytes: None,
                ..usage
            }),
        };
        linux.containers.push(container);
    }
    pods.into_values().collect()
}

/// Both together, as far as they are known.
fn sum(a: Option<UInt64Value>, b: Option<UInt64Value>) -> Option<UInt64Value> {
    let value = a.into_iter().chain(b).map(|one| one.value);
    value
        .reduce(u64::saturating_add)
        .map(|value| UInt64Value { value })
}
