//! Checkpoint and restore of whole pods.

use cri_proto::runtime::v1 as cri;
use tonic::Status;

use super::World;

/// The content of a checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct Checkpoint {
    pub(crate) containers: Vec<cri::ContainerConfig>,
}

impl World {
    pub(crate) fn checkpoint_pod(
        &mut self,
        request: cri::CheckpointPodRequest,
    ) -> Result<cri::CheckpointPodResponse, Status> {
        let id = self
            .sandbox_id(&request.pod_sandbox_id)
            .ok_or_else(|| Status::not_found(format!("no sandbox {}", request.pod_sandbox_id)))?;
        let wanted = &request.container_ids;
        let containers = self
            .containers_of(&id)
            .filter(|c| wanted.is_empty() || wanted.contains(&c.id))
            .map(|c| c.config.clone())
            .collect();
        self.checkpoints
            .insert(request.output_path, Checkpoint { containers });
        Ok(cri::CheckpointPodResponse {})
    }

    pub(crate) fn restore_pod(
        &mut self,
        request: cri::RestorePodRequest,
    ) -> Result<cri::RestorePodResponse, Status> {
        let path = &request.checkpoint_path;
        let Some(checkpoint) = self.checkpoints.get(path).cloned() else {
            return Err(Status::not_found(format!("no checkpoint at {path}")));
        };
        let config = request
            .config
            .ok_or_else(|| Status::invalid_argument("config is not set"))?;
        let sandbox = self.run_sandbox(config, request.runtime_handler)?;
        let configs = if request.container_configs.is_empty() {
            checkpoint.containers
        } else {
            request.container_configs
        };
        let mut restored = Vec::new();
        for config in configs {
            let name = config.metadata.clone().unwrap_or_default().name;
            let container_id = self.create_container(&sandbox, config)?;
            self.start_container(&container_id)?;
            restored.push(cri::RestoredContainer { name, container_id });
        }
        Ok(cri::RestorePodResponse {
            pod_sandbox_id: sandbox,
            restored_containers: restored,
        })
    }
}
