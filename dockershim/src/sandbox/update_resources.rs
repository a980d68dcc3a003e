//! `UpdatePodSandboxResources`.

use cri_proto::runtime::v1::{
    PodSandboxState, UpdatePodSandboxResourcesRequest, UpdatePodSandboxResourcesResponse,
};

use crate::{Error, Shim};

/// Accepts a pod's new size and does nothing: the kubelet manages the pod's cgroup, and there is no
/// virtual machine to resize.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` if the sandbox is not ready.
pub async fn update_resources(
    shim: &Shim,
    request: UpdatePodSandboxResourcesRequest,
) -> Result<UpdatePodSandboxResourcesResponse, Error> {
    let sandbox = shim.find_sandbox(&request.pod_sandbox_id).await?;
    if sandbox.status.state() != PodSandboxState::SandboxReady {
        return Err(Error::FailedPrecondition(format!(
            "sandbox {} is not ready",
            sandbox.id()
        )));
    }
    Ok(UpdatePodSandboxResourcesResponse {})
}
