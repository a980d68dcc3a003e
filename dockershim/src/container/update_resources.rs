//! `UpdateContainerResources`.

use bollard::models::{ContainerUpdateBody, HostConfig};
use cri_proto::runtime::v1::{
    ContainerState, LinuxContainerResources, UpdateContainerResourcesRequest,
    UpdateContainerResourcesResponse,
};

use super::{resources, status::find};
use crate::{Error, Shim, cgroup_settings::unified, labels::Unified};

/// Updates the limits of a container that has not exited; 0 or empty values are left unchanged.
///
/// # Errors
/// `NotFound`; `FailedPrecondition` if it has exited; `InvalidArgument` or `Unsupported` naming the
/// field; the engine's error.
pub async fn update_resources(
    shim: &Shim,
    request: UpdateContainerResourcesRequest,
) -> Result<UpdateContainerResourcesResponse, Error> {
    if request.windows.is_some() {
        return Err(Error::unsupported("windows", "this is a Linux runtime"));
    }
    let container = find(shim, &request.container_id).await?;
    let state = container.status.state();
    if state == ContainerState::ContainerExited {
        return Err(Error::FailedPrecondition(format!(
            "container {} has exited; its resources cannot be changed",
            container.id()
        )));
    }
    let Some(linux) = request.linux else {
        return Ok(UpdateContainerResourcesResponse {});
    };
    let (body, unified) = body(linux);
    unified::label(&unified)?;
    if body != ContainerUpdateBody::default() {
        shim.engine.update_container(container.id(), body).await?;
    }
    if state == ContainerState::ContainerRunning {
        shim.cgroup_settings.change(&container, unified).await?;
    } else if !unified.is_empty() {
        return Err(Error::FailedPrecondition(format!(
            "linux.unified: container {} has no cgroup until it is started",
            container.id()
        )));
    }
    shim.inspector.refresh(container.id()).await?;
    Ok(UpdateContainerResourcesResponse {})
}

fn body(linux: LinuxContainerResources) -> (ContainerUpdateBody, Unified) {
    let mut host = HostConfig::default();
    let unified = resources::apply(linux, &mut host);
    let body = ContainerUpdateBody {
        cpu_period: host.cpu_period,
        cpu_quota: host.cpu_quota,
        cpu_shares: host.cpu_shares,
        cpuset_cpus: host.cpuset_cpus,
        cpuset_mems: host.cpuset_mems,
        memory: host.memory,
        memory_swap: host.memory_swap,
        ..Default::default()
    };
    (body, unified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_is_not_changed() {
        let (nothing, _) = body(LinuxContainerResources::default());
        assert_eq!(nothing, ContainerUpdateBody::default());
        let limits = LinuxContainerResources {
            memory_limit_in_bytes: 1 << 20,
            ..Default::default()
        };
        let (memory, _) = body(limits);
        assert_eq!((memory.memory, memory.cpu_shares), (Some(1 << 20), None));
    }
}
