//! `StartContainer`.

use std::{path::Path, sync::Arc};

use cri_proto::runtime::v1::{ContainerState, StartContainerRequest, StartContainerResponse};

use super::status::find;
use crate::{Error, Shim, logs::symlink};

/// Starts a created container, and follows or symlinks its log.
///
/// # Errors
/// `NotFound`, `FailedPrecondition` if it was started before, or the engine's error.
pub async fn start(
    shim: &Arc<Shim>,
    request: StartContainerRequest,
) -> Result<StartContainerResponse, Error> {
    let container = find(shim, &request.container_id).await?;
    let id = container.id();
    if container.status.state() != ContainerState::ContainerCreated {
        return Err(Error::FailedPrecondition(format!(
            "container {id} is {}; only a created container can be started",
            container.status.state().as_str_name()
        )));
    }
    shim.logs.create(&container).await;
    let started = shim.engine.start_container(id).await;
    // The record and the log are useful even if the container failed to start.
    let refreshed = shim.inspector.refresh(id).await;
    link_log(shim, id).await;
    started?;
    if let Err(error) = refreshed {
        tracing::warn!(container_id = id, %error, "started the container, but cannot inspect it");
        shim.model.amend_container(id, |container| {
            container.status.state = ContainerState::ContainerRunning.into();
            container.status.started_at = crate::clock::now();
            container.provisional = true;
        });
        shim.refresher.enqueue(id.into());
    }
    if let Ok(running) = shim.model.snapshot().container(id) {
        shim.cgroup_settings.write(&running).await;
    }
    Ok(StartContainerResponse {})
}

/// Links the log; a failure is only logged, as the container runs without it.
async fn link_log(shim: &Shim, id: &str) {
    let Ok(container) = shim.model.snapshot().container(id) else {
        return;
    };
    let (log_path, engine_log) = (&container.status.log_path, &container.engine_log);
    if container.cri_log || log_path.is_empty() {
        return;
    }
    if engine_log.is_empty() {
        if container.status.state() == ContainerState::ContainerRunning {
            tracing::warn!(
                container_id = id,
                "the container has no log: the engine's log driver writes no file"
            );
        }
        return;
    }
    if let Err(error) = symlink::create(Path::new(log_path), Path::new(engine_log)).await {
        tracing::warn!(container_id = id, %error, "cannot create the log symlink");
    }
}
