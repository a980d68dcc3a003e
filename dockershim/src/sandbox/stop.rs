//! `StopPodSandbox`.

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ContainerState, StopPodSandboxRequest, StopPodSandboxResponse};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{
    Error, LookupError, Shim,
    container::stop::stop_running,
    model::Sandbox,
    network::cni::{NetNs, Pod},
};

/// The grace period of containers that are still running when their sandbox is stopped. Clients
/// that need more stop the containers first.
const CONTAINER_GRACE: Duration = Duration::from_secs(2);
/// The grace period of the pause program, which exits at once.
const SANDBOX_GRACE: Duration = Duration::from_secs(2);
/// The number of containers stopped concurrently.
const CONCURRENCY: usize = 8;

/// Stops the sandbox's containers, detaches the sandbox from its network, and stops it, even if it
/// could not be detached. Succeeds if the sandbox does not exist or is not running.
///
/// # Errors
/// The error of the engine or a CNI plugin; `Unavailable` while the engine is away.
pub async fn stop(
    shim: &Arc<Shim>,
    request: StopPodSandboxRequest,
) -> Result<StopPodSandboxResponse, Error> {
    match shim.model.snapshot().sandbox(&request.pod_sandbox_id) {
        Ok(sandbox) => stop_whole(shim, &sandbox).await?,
        Err(LookupError::Missing) => {
            // Another client removed the sandbox, but its network may still exist.
            if let Some(cni) = &shim.cni {
                cni.detach_known(&request.pod_sandbox_id, None).await?;
            }
        }
        Err(error) => return Err(error.of("sandbox", &request.pod_sandbox_id)),
    }
    Ok(StopPodSandboxResponse {})
}

/// Stops the containers of `sandbox`, detaches it from its network, and stops it.
pub(super) async fn stop_whole(shim: &Shim, sandbox: &Sandbox) -> Result<(), Error> {
    let running: Vec<String> = shim
        .model
        .snapshot()
        .containers_of(sandbox.id())
        .filter(|container| container.status.state() == ContainerState::ContainerRunning)
        .map(|container| container.id().to_owned())
        .collect();
    futures::stream::iter(running)
        .map(Ok)
        .try_for_each_concurrent(CONCURRENCY, async |id| {
            stop_running(shim, &id, CONTAINER_GRACE).await
        })
        .await?;
    // Before the sandbox stops, while the plugins can still remove its interfaces from the network
    // namespace. A namespace is held until the sandbox is detached.
    let mut detached = Ok(());
    if let Some(cni) = shim.cni.as_ref().filter(|_| sandbox.cni) {
        let netns = NetNs::of(&shim.processes, sandbox).await.ok();
        detached = cni.detach(&Pod::of(sandbox), netns).await;
    }
    if sandbox.runs() {
        stop_running(shim, sandbox.id(), SANDBOX_GRACE).await?;
        return Ok(detached?);
    }
    match detached {
        // The attachment stays in the cache. Its removal is tried again after that of the sandbox.
        Err(error) if error.is_missing_plugin() => {
            tracing::warn!(
                sandbox_id = sandbox.id(),
                %error,
                "a stopped sandbox stays attached to its network"
            );
            Ok(())
        }
        done => Ok(done?),
    }
}
