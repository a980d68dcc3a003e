//! State of a running kubelet for other parts.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_cri_client::{CriClient, readiness::RuntimeReadiness, running_pods::running_pods};
use kubelet_device_manager::DeviceManager;
use kubelet_host::local_node::LocalNode;
use kubelet_node::shutdown::NodeShutdown;
use kubelet_pod_spec::identity::PodUid;
use kubelet_resource_analyzer::Usages;
use tokio::sync::watch;

use super::{Kubelet, KubeletError};
use crate::{pod::manager::PodManager, status::StatusManager};

impl Kubelet {
    /// Unique names of the volumes that must stay attached to this node because pods use or will
    /// use them; `None` until that is known.
    pub fn volumes_in_use(&self) -> Option<Vec<String>> {
        self.0.volumes.volumes_in_use()
    }

    /// What each active pod uses on the node, as last measured.
    pub fn pod_usages(&self) -> Arc<Usages> {
        self.0.analyzer.usages()
    }

    /// Why the cluster does not know yet which volumes this node supports (`CSINode`).
    pub fn csi_node_problem(&self) -> Option<String> {
        self.0.csi_node.as_ref()?.problem()
    }

    /// The pods of this node with their status, as `/pods` serves them, sorted by namespace and
    /// name.
    pub fn pods(&self) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self
            .0
            .pods
            .pods()
            .iter()
            .map(|pod| {
                let mut pod = Pod::clone(pod);
                if let Some(status) = self.0.statuses.get(&PodUid::of(&pod)) {
                    pod.status = Some((*status).clone());
                }
                pod
            })
            .collect();
        pods.sort_unstable_by(|a, b| {
            let key = |pod: &Pod| (pod.metadata.namespace.clone(), pod.metadata.name.clone());
            key(a).cmp(&key(b))
        });
        pods
    }

    /// The last status of a pod; none before its first sync and after its removal.
    pub fn status(&self, uid: &PodUid) -> Option<Arc<PodStatus>> {
        self.0.statuses.get(uid)
    }

    /// Notified when the status of any pod changes.
    pub fn status_changes(&self) -> watch::Receiver<()> {
        self.0.statuses.subscribe()
    }

    /// The runtime's running pods, as `/runningpods/` serves them: metadata, and names and images
    /// of running containers.
    ///
    /// # Errors
    /// The runtime's pods cannot be listed.
    pub async fn running_pods(&self) -> Result<Vec<Pod>, KubeletError> {
        Ok(running_pods(&self.0.cri).await?)
    }

    /// Whether the kubelet is healthy, for the service manager.
    ///
    /// # Errors
    /// A message that names the failing part.
    pub fn healthy(&self) -> Result<(), String> {
        self.sync_loop_healthy()?;
        self.device_plugins_healthy()
    }

    /// Whether the sync loop runs. It does not while the runtime fails.
    ///
    /// # Errors
    /// A message with the time since the last iteration.
    pub(super) fn sync_loop_healthy(&self) -> Result<(), String> {
        self.0.monitor.healthy()
    }

    /// Whether device plugins can register.
    ///
    /// # Errors
    /// A message that says so.
    pub(super) fn device_plugins_healthy(&self) -> Result<(), String> {
        self.device_manager().map_or(Ok(()), DeviceManager::health)
    }

    /// Whether the PLEG relists in time.
    ///
    /// # Errors
    /// A message with the time since the last relist.
    pub fn pleg_healthy(&self) -> Result<(), String> {
        self.0.pleg.healthy()
    }

    /// The runtime's own conditions.
    pub fn readiness(&self) -> &Arc<RuntimeReadiness> {
        &self.0.readiness
    }

    pub(crate) fn sources_ready(&self) -> bool {
        (self.0.sources_ready)()
    }

    pub(crate) fn local_node(&self) -> &Arc<LocalNode> {
        &self.0.local_node
    }

    pub(crate) fn cri(&self) -> &CriClient {
        &self.0.cri
    }

    /// The state of a node shutdown.
    pub fn shutdown(&self) -> &NodeShutdown {
        &self.0.shutdown
    }

    pub(crate) fn pod_manager(&self) -> &PodManager {
        &self.0.pods
    }

    pub(crate) fn statuses(&self) -> &StatusManager {
        &self.0.statuses
    }
}
