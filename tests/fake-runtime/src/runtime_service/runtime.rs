//! The verbs of the runtime as a whole: its version, status, configuration and events.

use cri_proto::runtime::v1 as cri;
use tokio_stream::{StreamExt as _, wrappers::BroadcastStream};
use tonic::Status;

use crate::{lists::ResponseStream, world::World};

pub(super) fn version(
    _: &mut World,
    _: cri::VersionRequest,
) -> Result<cri::VersionResponse, Status> {
    Ok(cri::VersionResponse {
        version: "0.1.0".to_owned(),
        runtime_name: "fake".to_owned(),
        runtime_version: "1.0.0".to_owned(),
        runtime_api_version: "v1".to_owned(),
    })
}

pub(super) fn status(
    world: &mut World,
    _: cri::StatusRequest,
) -> Result<cri::StatusResponse, Status> {
    let ready = |kind: &str| cri::RuntimeCondition {
        r#type: kind.to_owned(),
        status: !world.unready.contains(kind),
        ..cri::RuntimeCondition::default()
    };
    Ok(cri::StatusResponse {
        status: Some(cri::RuntimeStatus {
            conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
        }),
        runtime_handlers: vec![cri::RuntimeHandler {
            name: String::new(),
            features: Some(cri::RuntimeHandlerFeatures {
                user_namespaces: world.user_namespaces,
                ..cri::RuntimeHandlerFeatures::default()
            }),
        }],
        features: Some(cri::RuntimeFeatures {
            supplemental_groups_policy: world.group_policies,
            ..cri::RuntimeFeatures::default()
        }),
        ..cri::StatusResponse::default()
    })
}

pub(super) fn config(
    _: &mut World,
    _: cri::RuntimeConfigRequest,
) -> Result<cri::RuntimeConfigResponse, Status> {
    Ok(cri::RuntimeConfigResponse {
        linux: Some(cri::LinuxRuntimeConfiguration {
            cgroup_driver: cri::CgroupDriver::Cgroupfs.into(),
        }),
    })
}

pub(super) fn update_config(
    world: &mut World,
    request: cri::UpdateRuntimeConfigRequest,
) -> Result<cri::UpdateRuntimeConfigResponse, Status> {
    let config = request.runtime_config;
    if let Some(network) = config.and_then(|config| config.network_config) {
        world.pod_cidr = network.pod_cidr;
    }
    Ok(cri::UpdateRuntimeConfigResponse {})
}

pub(super) fn events(
    world: &mut World,
    _: cri::GetEventsRequest,
) -> Result<ResponseStream<cri::ContainerEventResponse>, Status> {
    if world.has_no_events {
        return Ok(Box::pin(futures::stream::empty()));
    }
    let events = BroadcastStream::new(world.events.subscribe()).map(|event| {
        event.map_err(|lagged| Status::resource_exhausted(format!("too slow: {lagged}")))
    });
    Ok(Box::pin(events))
}
