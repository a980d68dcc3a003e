//! The CPUs and NUMA nodes of containers, as the managers of these resources decide.

use std::collections::{BTreeMap, BTreeSet};

use cri_proto::runtime::v1::{ContainerConfig, LinuxContainerResources};
use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::{ContainerState, PodStatus};
use kubelet_host::cpu_set::CpuSet;
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tracing::{info, warn};

use crate::RuntimeManager;

/// The CPUs in the last request to the runtime, by container ID.
#[derive(Debug, Default)]
pub(crate) struct CpuSets(Mutex<BTreeMap<String, String>>);

impl CpuSets {
    /// Notes the CPUs of a container.
    fn sent(&self, id: &str, cpus: String) {
        self.0.lock().insert(id.to_owned(), cpus);
    }
}

impl RuntimeManager {
    /// Sets the CPUs and NUMA nodes in a container's config.
    pub(crate) fn pin(&self, pod: &Pod, container: &str, config: &mut ContainerConfig) {
        let linux = config.linux.as_mut();
        let Some(resources) = linux.and_then(|linux| linux.resources.as_mut()) else {
            return;
        };
        let uid = PodUid::of(pod);
        let text = |set: Option<CpuSet>| set.map(|set| set.to_string()).unwrap_or_default();
        resources.cpuset_cpus = text(self.managers.cpus(&uid, container));
        resources.cpuset_mems = text(self.managers.memory_nodes(&uid, container));
    }

    /// Notes the CPUs that a container was created with, and updates them if they have changed since.
    pub(crate) async fn created_on(&self, pod: &Pod, container: &str, id: &str, cpus: String) {
        let uid = PodUid::of(pod);
        let Some(now) = self.managers.cpus(&uid, container) else {
            return;
        };
        self.cpu_sets.sent(id, cpus);
        self.update_cpu_set(&uid, container, id, &now).await;
    }

    async fn update_cpu_set(&self, pod: &PodUid, container: &str, id: &str, cpus: &CpuSet) {
        let cpus = cpus.to_string();
        if self.cpu_sets.0.lock().get(id) == Some(&cpus) {
            return;
        }
        let resources = LinuxContainerResources {
            cpuset_cpus: cpus.clone(),
            ..LinuxContainerResources::default()
        };
        match self.cri.update_container_resources(id, resources).await {
            Ok(()) => {
                info!(
                    pod_uid = %pod, container, container_id = id, cpus,
                    "set the CPUs of a container"
                );
                self.cpu_sets.sent(id, cpus);
            }
            Err(error) => {
                warn!(
                    pod_uid = %pod, container, container_id = id, cpus, %error,
                    "cannot set the CPUs of a container; retrying"
                );
            }
        }
    }

    /// Updates the running containers of these pods whose CPUs have changed: those that share CPUs,
    /// when others get or release exclusive ones. After the start, the kubelet sends all once.
    pub async fn update_cpu_sets(&self, pods: impl Iterator<Item = (PodUid, &PodStatus)>) {
        let mut running = BTreeSet::new();
        for (uid, status) in pods {
            for container in &status.containers {
                if container.state != ContainerState::Running {
                    continue;
                }
                running.insert(container.id.clone());
                let Some(cpus) = self.managers.cpus(&uid, &container.name) else {
                    return;
                };
                let (id, name) = (&container.id, &container.name);
                self.update_cpu_set(&uid, name, id, &cpus).await;
            }
        }
        self.cpu_sets.0.lock().retain(|id, _| running.contains(id));
    }
}
