//! The verbs of containers that the state alone answers.

use cri_proto::runtime::v1 as cri;
use tonic::Status;

use crate::{
    convert,
    lists::{ResponseStream, chunks},
    updates,
    world::{Checkpoint, World},
};

pub(super) fn create(
    world: &mut World,
    request: cri::CreateContainerRequest,
) -> Result<cri::CreateContainerResponse, Status> {
    let config = request
        .config
        .ok_or_else(|| Status::invalid_argument("config is not set"))?;
    Ok(cri::CreateContainerResponse {
        container_id: world.create_container(&request.pod_sandbox_id, config)?,
    })
}

pub(super) fn remove(
    world: &mut World,
    request: cri::RemoveContainerRequest,
) -> Result<cri::RemoveContainerResponse, Status> {
    if let Some(id) = world.container_id(&request.container_id) {
        world.remove_container(&id);
    }
    Ok(cri::RemoveContainerResponse {})
}

pub(super) fn status(
    world: &mut World,
    request: cri::ContainerStatusRequest,
) -> Result<cri::ContainerStatusResponse, Status> {
    let container = world.container(&request.container_id)?;
    Ok(cri::ContainerStatusResponse {
        status: Some(world.container_status(container)),
        ..cri::ContainerStatusResponse::default()
    })
}

pub(super) fn list(
    world: &mut World,
    request: cri::ListContainersRequest,
) -> Result<cri::ListContainersResponse, Status> {
    Ok(cri::ListContainersResponse {
        containers: listed(world, request.filter),
    })
}

pub(super) fn stream(
    world: &mut World,
    request: cri::StreamContainersRequest,
) -> Result<ResponseStream<cri::StreamContainersResponse>, Status> {
    let listed = listed(world, request.filter);
    Ok(chunks(&listed, |containers| {
        cri::StreamContainersResponse { containers }
    }))
}

fn listed(world: &World, filter: Option<cri::ContainerFilter>) -> Vec<cri::Container> {
    let filter = filter.unwrap_or_default();
    world
        .listed_containers()
        .values()
        .filter(|c| convert::container_matches(c, &filter))
        .map(convert::listed_container)
        .collect()
}

pub(super) fn update_resources(
    world: &mut World,
    request: cri::UpdateContainerResourcesRequest,
) -> Result<cri::UpdateContainerResourcesResponse, Status> {
    let container = world.container_mut(&request.container_id)?;
    let linux = container.config.linux.get_or_insert_default();
    let now = linux.resources.get_or_insert_default();
    updates::update(now, request.linux.unwrap_or_default());
    Ok(cri::UpdateContainerResourcesResponse {})
}

pub(super) fn reopen_log(
    world: &mut World,
    request: cri::ReopenContainerLogRequest,
) -> Result<cri::ReopenContainerLogResponse, Status> {
    world.open_log(&world.running(&request.container_id)?.id);
    Ok(cri::ReopenContainerLogResponse {})
}

pub(super) fn checkpoint(
    world: &mut World,
    request: cri::CheckpointContainerRequest,
) -> Result<cri::CheckpointContainerResponse, Status> {
    let config = world.running(&request.container_id)?.config.clone();
    let checkpoint = Checkpoint {
        containers: vec![config],
    };
    world.checkpoints.insert(request.location, checkpoint);
    Ok(cri::CheckpointContainerResponse {})
}
