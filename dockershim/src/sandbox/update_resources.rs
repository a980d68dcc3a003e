//! `UpdatePodSandboxResources`.

use cri_proto::runtime::v1::{
    PodSandboxState, UpdatePodSandboxResourcesRequest, UpdatePodSandboxResourcesResponse,
};

use super::status::find;
use crate::{Error, Shim};

/// Takes note of a pod's new size. There is nothing to do for it: the pod's cgroup is the
/// kubelet's, and there is no virtual machine around the pod that had to grow.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` when the sandbox is not ready.
pub async fn update_resources(
    shim: &Shim,
    request: UpdatePodSandboxResourcesRequest,
) -> Result<UpdatePodSandboxResourcesResponse, Error> {
    let sandbox = find(shim, &request.pod_sandbox_id).await?;
    if sandbox.status.state() != PodSandboxState::SandboxReady {
        return Err(Error::FailedPrecondition(format!(
            "sandbox {} is not ready",
            sandbox.id()
        )));
    }
    Ok(UpdatePodSandboxResourcesResponse {})
}
