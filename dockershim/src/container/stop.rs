//! `StopContainer`.

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ContainerState, StopContainerRequest, StopContainerResponse};

use crate::{Error, LookupError, Shim, engine::EngineError, model::Snapshot};

/// Sends the stop signal, unless an earlier call did, then SIGKILL after `timeout` seconds, and
/// returns when the container has exited. Succeeds if the container does not exist or is not running.
///
/// # Errors
/// The engine's error; `Unavailable` while the engine is away.
pub async fn stop(
    shim: &Arc<Shim>,
    request: StopContainerRequest,
) -> Result<StopContainerResponse, Error> {
    let grace = Duration::from_secs(u64::try_from(request.timeout).unwrap_or_default());
    match shim.model.snapshot().container(&request.container_id) {
        Ok(container) => match container.status.state() {
            ContainerState::ContainerCreated | ContainerState::ContainerExited => {}
            _ => stop_running(shim, container.id(), grace).await?,
        },
        Err(LookupError::Missing) => {}
        Err(error) => return Err(error.of("container", &request.container_id)),
    }
    Ok(StopContainerResponse {})
}

/// Stops the running container or sandbox with the full id `id` and waits for its exit: until the
/// engine answers or, if that hangs, until the model shows the exit.
pub(crate) async fn stop_running(shim: &Shim, id: &str, grace: Duration) -> Result<(), Error> {
    let stopped = tokio::select! {
        stopped = signal_and_kill(shim, id, grace) => stopped,
        () = wait_for_end(shim, id) => return Ok(()),
    };
    match stopped {
        Err(error) if error.is_not_found() => shim.inspector.removed(id),
        Err(error) => return Err(error.into()),
        Ok(()) => shim.inspector.refresh(id).await?,
    }
    Ok(())
}

async fn signal_and_kill(shim: &Shim, id: &str, grace: Duration) -> Result<(), EngineError> {
    if shim.stop_signals.note(&shim.model.snapshot(), id) {
        let stopped = shim.engine.stop_container(id, grace).await;
        if stopped.is_err() {
            shim.stop_signals.forget(id);
        }
        return stopped;
    }
    tokio::time::sleep(grace).await;
    match shim.engine.kill_container(id).await {
        // It has ended by itself.
        Err(error) if error.is_conflict() => Ok(()),
        killed => killed,
    }
}

/// Returns when the container or sandbox with the full id `id` is no longer running.
pub(crate) async fn wait_for_end(shim: &Shim, id: &str) {
    shim.model.wait_for(|snapshot| !runs(snapshot, id)).await;
}

fn runs(snapshot: &Snapshot, id: &str) -> bool {
    if let Ok(sandbox) = snapshot.sandbox(id) {
        return sandbox.pid != 0 || sandbox.provisional;
    }
    match snapshot.container(id) {
        Ok(container) => container.status.state() == ContainerState::ContainerRunning,
        Err(_) => false,
    }
}
