//! `StopPodSandbox`.

use std::{sync::Arc, time::Duration};

use cri_proto::runtime::v1::{ContainerState, StopPodSandboxRequest, StopPodSandboxResponse};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::{
    Error, Shim,
    container::stop::stop_running,
    model::{LookupError, Sandbox},
    network::cni::{NetNs, Pod},
};

/// What a container gets when its sandbox is stopped under it; a client that cares
/// stops the containers first.
const CONTAINER_GRACE: Duration = Duration::from_secs(2);
/// The pause program ends at once.
const SANDBOX_GRACE: Duration = Duration::from_secs(2);
/// Containers stopped at the same time.
const CONCURRENCY: usize = 8;

/// Stops every container of the sandbox, detaches it from its network, then stops itself. One that is not there, or
/// does not run, is stopped.
///
/// # Errors
/// What the engine or a network plugin said; `Unavailable` while the engine is away.
pub async fn stop(
    shim: &Arc<Shim>,
    request: StopPodSandboxRequest,
) -> Result<StopPodSandboxResponse, Error> {
    match shim.model.snapshot().sandbox(&request.pod_sandbox_id) {
        Ok(sandbox) => stop_whole(shim, &sandbox).await?,
        Err(LookupError::Missing) => {
            // Someone else removed it; its network may be there yet.
            if let Some(cni) = &shim.cni {
                cni.detach_known(&request.pod_sandbox_id, None).await?;
            }
        }
        Err(error) => return Err(error.of("sandbox", &request.pod_sandbox_id)),
    }
    Ok(StopPodSandboxResponse {})
}

/// Stops the containers of `sandbox`, detaches it from its network, and stops itself.
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
    // While its namespace is still there, and what is in it can be taken out.
    if let Some(cni) = shim.cni.as_ref().filter(|_| sandbox.cni) {
        let netns = NetNs::of(&shim.processes, sandbox).await.ok();
        cni.detach(&Pod::of(sandbox), netns).await?;
    }
    if sandbox.runs() {
        stop_running(shim, sandbox.id(), SANDBOX_GRACE).await?;
    }
    Ok(())
}
