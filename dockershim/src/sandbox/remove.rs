//! `RemovePodSandbox`.

use std::sync::Arc;

use cri_proto::runtime::v1::{RemovePodSandboxRequest, RemovePodSandboxResponse};

use super::stop::stop_whole;
use crate::{
    Error, LookupError, Shim,
    container::remove::{remove_docker, remove_found},
};

/// Removes the sandbox and its remaining containers, and stops those that are running. Succeeds if
/// the sandbox does not exist.
///
/// # Errors
/// The error of the engine or a CNI plugin; `Unavailable` while the engine is away.
pub async fn remove(
    shim: &Arc<Shim>,
    request: RemovePodSandboxRequest,
) -> Result<RemovePodSandboxResponse, Error> {
    let snapshot = shim.model.snapshot();
    let sandbox = match snapshot.sandbox(&request.pod_sandbox_id) {
        Ok(sandbox) => sandbox,
        Err(LookupError::Missing) => {
            if let Some(cni) = &shim.cni {
                cni.detach_known(&request.pod_sandbox_id, None).await?;
            }
            return Ok(RemovePodSandboxResponse {});
        }
        Err(error) => return Err(error.of("sandbox", &request.pod_sandbox_id)),
    };
    stop_whole(shim, &sandbox).await?;
    for container in snapshot.containers_of(sandbox.id()) {
        remove_found(shim, container).await?;
    }
    remove_docker(shim, sandbox.id()).await?;
    Ok(RemovePodSandboxResponse {})
}
