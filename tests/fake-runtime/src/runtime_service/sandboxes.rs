//! The verbs of sandboxes.

use cri_proto::runtime::v1 as cri;
use tonic::Status;

use crate::{
    convert,
    history::EndCause,
    lists::{ResponseStream, chunks},
    world::World,
};

pub(super) fn run(
    world: &mut World,
    request: cri::RunPodSandboxRequest,
) -> Result<cri::RunPodSandboxResponse, Status> {
    let config = request
        .config
        .ok_or_else(|| Status::invalid_argument("config is not set"))?;
    Ok(cri::RunPodSandboxResponse {
        pod_sandbox_id: world.run_sandbox(config, request.runtime_handler)?,
    })
}

pub(super) fn stop(
    world: &mut World,
    request: cri::StopPodSandboxRequest,
) -> Result<cri::StopPodSandboxResponse, Status> {
    if let Some(id) = world.sandbox_id(&request.pod_sandbox_id) {
        world.stop_sandbox(&id, EndCause::SandboxStop);
    }
    Ok(cri::StopPodSandboxResponse {})
}

pub(super) fn remove(
    world: &mut World,
    request: cri::RemovePodSandboxRequest,
) -> Result<cri::RemovePodSandboxResponse, Status> {
    if let Some(id) = world.sandbox_id(&request.pod_sandbox_id) {
        world.remove_sandbox(&id);
    }
    Ok(cri::RemovePodSandboxResponse {})
}

pub(super) fn status(
    world: &mut World,
    request: cri::PodSandboxStatusRequest,
) -> Result<cri::PodSandboxStatusResponse, Status> {
    let sandbox = world.sandbox(&request.pod_sandbox_id)?;
    Ok(cri::PodSandboxStatusResponse {
        status: Some(convert::sandbox_status(sandbox)),
        containers_statuses: world.container_statuses(&sandbox.id),
        timestamp: world.now(),
        ..cri::PodSandboxStatusResponse::default()
    })
}

pub(super) fn list(
    world: &mut World,
    request: cri::ListPodSandboxRequest,
) -> Result<cri::ListPodSandboxResponse, Status> {
    Ok(cri::ListPodSandboxResponse {
        items: listed(world, request.filter),
    })
}

pub(super) fn stream(
    world: &mut World,
    request: cri::StreamPodSandboxesRequest,
) -> Result<ResponseStream<cri::StreamPodSandboxesResponse>, Status> {
    let listed = listed(world, request.filter);
    Ok(chunks(&listed, |pod_sandboxes| {
        cri::StreamPodSandboxesResponse { pod_sandboxes }
    }))
}

fn listed(world: &World, filter: Option<cri::PodSandboxFilter>) -> Vec<cri::PodSandbox> {
    let filter = filter.unwrap_or_default();
    world
        .listed_sandboxes()
        .values()
        .filter(|s| convert::sandbox_matches(s, &filter))
        .map(convert::listed_sandbox)
        .collect()
}

pub(super) fn update_resources(
    world: &mut World,
    request: cri::UpdatePodSandboxResourcesRequest,
) -> Result<cri::UpdatePodSandboxResourcesResponse, Status> {
    let sandbox = world.sandbox_mut(&request.pod_sandbox_id)?;
    let linux = sandbox.config.linux.get_or_insert_default();
    linux.overhead = request.overhead;
    linux.resources = request.resources;
    Ok(cri::UpdatePodSandboxResourcesResponse {})
}
