//! `RemoveContainer`.

use std::{path::Path, sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ContainerState, RemoveContainerRequest, RemoveContainerResponse};

use super::stop::stop_running;
use crate::{Error, LookupError, Shim, logs::symlink, model::Container};

/// The time limit for a removal that another client started.
const REMOVAL: Duration = Duration::from_secs(60);

/// Removes a container, by force if it is running, and the symlink to its log. Succeeds if the
/// container does not exist.
///
/// # Errors
/// The engine's error; `Unavailable` while the engine is away.
pub async fn remove(
    shim: &Arc<Shim>,
    request: RemoveContainerRequest,
) -> Result<RemoveContainerResponse, Error> {
    match shim.model.snapshot().container(&request.container_id) {
        Ok(container) => remove_found(shim, &container).await?,
        Err(LookupError::Missing) => {}
        Err(error) => return Err(error.of("container", &request.container_id)),
    }
    Ok(RemoveContainerResponse {})
}

/// Removes `container` and the symlink to its log.
pub(crate) async fn remove_found(shim: &Shim, container: &Container) -> Result<(), Error> {
    if container.status.state() == ContainerState::ContainerRunning {
        // Removing a running container would make the engine delete the end of the log.
        stop_running(shim, container.id(), Duration::ZERO).await?;
    }
    let log_path = &container.status.log_path;
    if !log_path.is_empty()
        && let Err(error) = symlink::remove(Path::new(log_path)).await
    {
        tracing::warn!(container_id = container.id(), %error, "cannot remove the log symlink");
    }
    remove_docker(shim, container.id()).await
}

/// Removes the Docker container of the sandbox or container with the full id `id`.
pub(crate) async fn remove_docker(shim: &Shim, id: &str) -> Result<(), Error> {
    match shim.engine.remove_container(id, true).await {
        // Another client is removing it, so wait until it is gone.
        Err(error) if error.is_conflict() => {
            let gone = shim.model.wait_for(|snapshot| !snapshot.contains(id));
            tokio::time::timeout(REMOVAL, gone)
                .await
                .map_err(|_| error)?;
        }
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => shim.inspector.removed(id),
    }
    Ok(())
}
