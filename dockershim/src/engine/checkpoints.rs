//! Checkpoints of running containers, which the engine creates with CRIU.

use std::{path::Path, time::Duration};

use bollard::container::{CreateCheckpointOptions, DeleteCheckpointOptions};

use super::{CHANGE, Engine, EngineError};

impl Engine {
    /// Creates the checkpoint `name` of a container, which keeps running, in a directory of that
    /// name in `directory`.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `Refused` with status 501 if the engine's experimental features
    /// are disabled.
    pub async fn create_checkpoint(
        &self,
        container: &str,
        name: &str,
        directory: &Path,
        deadline: Duration,
    ) -> Result<(), EngineError> {
        let call = self.call("checkpoint container", container, deadline);
        let docker = call.docker(self)?;
        let options = CreateCheckpointOptions {
            checkpoint_id: name.to_owned(),
            checkpoint_dir: Some(directory.to_string_lossy().into_owned()),
            exit: false,
        };
        call.run(docker.create_checkpoint(container, options)).await
    }

    /// Removes a checkpoint of [`Engine::create_checkpoint`].
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn delete_checkpoint(
        &self,
        container: &str,
        name: &str,
        directory: &Path,
    ) -> Result<(), EngineError> {
        let call = self.call("remove a checkpoint of container", container, CHANGE);
        let docker = call.docker(self)?;
        let options = DeleteCheckpointOptions {
            checkpoint_dir: Some(directory.to_string_lossy().into_owned()),
        };
        call.run(docker.delete_checkpoint(container, name, Some(options)))
            .await
    }
}
