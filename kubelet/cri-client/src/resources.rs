//! The calls by which containers are resized.

use cri_proto::runtime::v1::{
    ContainerStatsRequest, LinuxContainerResources, UpdateContainerResourcesRequest,
    UpdatePodSandboxResourcesRequest,
};

use super::{CriClient, CriError, incomplete};

impl CriClient {
    /// Gives a container other resources while it runs.
    ///
    /// # Errors
    /// The call failed.
    pub async fn update_container_resources(
        &self,
        id: &str,
        resources: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.update_container_resources(UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..UpdateContainerResourcesRequest::default()
        });
        self.call("UpdateContainerResources", id, call)
            .await
            .map(drop)
    }

    /// Sends the total resources of a sandbox's containers to the runtime.
    ///
    /// # Errors
    /// The call failed; a runtime need not serve it.
    pub async fn update_pod_sandbox_resources(
        &self,
        id: &str,
        resources: LinuxContainerResources,
    ) -> Result<(), CriError> {
        let mut client = self.runtime.clone();
        let call = client.update_pod_sandbox_resources(UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: id.to_owned(),
            resources: Some(resources),
            ..UpdatePodSandboxResourcesRequest::default()
        });
        self.call("UpdatePodSandboxResources", id, call)
            .await
            .map(drop)
    }

    /// Memory that a container uses, in bytes; what it could give back is not
    /// counted where the runtime tells no more.
    ///
    /// # Errors
    /// The call failed, or the runtime does not know.
    pub async fn container_memory_usage(&self, id: &str) -> Result<u64, CriError> {
        const VERB: &str = "ContainerStats";
        let mut client = self.runtime.clone();
        let call = client.container_stats(ContainerStatsRequest {
            container_id: id.to_owned(),
        });
        let stats = self.call(VERB, id, call).await?.stats;
        let memory = stats.and_then(|stats| stats.memory).unwrap_or_default();
        let usage = memory.usage_bytes.or(memory.working_set_bytes);
        usage
            .map(|usage| usage.value)
            .ok_or_else(|| incomplete(VERB, id, "stats.memory"))
    }
}
