//! `PodSandboxStatus`.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{PodSandboxStatus, PodSandboxStatusRequest, PodSandboxStatusResponse};

use crate::{
    Error, Shim,
    container::status::status_of,
    model::Sandbox,
    network::cni::{Cni, NetNs},
};

/// Answers from the model.
///
/// # Errors
/// `NotFound` if there is no such sandbox, `Unavailable` before the first sync.
pub async fn status(
    shim: &Shim,
    request: PodSandboxStatusRequest,
) -> Result<PodSandboxStatusResponse, Error> {
    let sandbox = shim.find_sandbox(&request.pod_sandbox_id).await?;
    let mut info = BTreeMap::new();
    if request.verbose {
        let mut about = serde_json::json!({ "pid": sandbox.pid, "runtime": sandbox.runtime });
        if let Some(cni) = &shim.cni {
            let netns = NetNs::of(&shim.processes, &sandbox).await.ok();
            about["cni"] = cni.describe(sandbox.id(), netns.as_ref()).await;
        }
        info.insert("info".to_owned(), about.to_string());
    }
    let images = shim.images.snapshot();
    Ok(PodSandboxStatusResponse {
        status: Some(current(shim.cni.as_deref(), &sandbox)),
        info,
        containers_statuses: shim
            .model
            .snapshot()
            .containers_of(sandbox.id())
            .map(|container| status_of(container, &images))
            .collect(),
        timestamp: crate::clock::now(),
    })
}

/// The sandbox's status, with its current addresses.
pub fn current(cni: Option<&Cni>, sandbox: &Sandbox) -> PodSandboxStatus {
    let mut status = sandbox.status.clone();
    if let Some(cni) = cni
        && let Some(network) = cni.network_status(sandbox.id())
    {
        status.network = Some(network);
    }
    status
}
