//! The driver's node service.

use std::{path::Path, sync::atomic::Ordering};

use cri_proto::csi::v1::{
    self as csi, node_server::Node, node_service_capability as capability,
    volume_capability::AccessType,
};
use tokio::time::sleep;
use tonic::{Request, Response, Status};

use super::{Call, FakeCsi, Fault, fault::HANG};

#[tonic::async_trait]
impl Node for FakeCsi {
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let is_device = is_device(request.volume_capability.as_ref());
        self.answer(Call::Stage(request.clone()), move |volumes| {
            let path = Path::new(&request.staging_target_path);
            volumes.stage(&request.volume_id, path, is_device)
        })
        .await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        self.answer(Call::Unstage(request.clone()), move |volumes| {
            let path = Path::new(&request.staging_target_path);
            volumes.unstage(&request.volume_id, path)
        })
        .await
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let is_device = is_device(request.volume_capability.as_ref());
        self.answer(Call::Publish(request.clone()), move |volumes| {
            let staging = Path::new(&request.staging_target_path);
            let path = Path::new(&request.target_path);
            volumes.publish(&request.volume_id, staging, path, is_device)
        })
        .await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        self.answer(Call::Unpublish(request.clone()), move |volumes| {
            let path = Path::new(&request.target_path);
            volumes.unpublish(&request.volume_id, path)
        })
        .await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        self.check("GetVolumeStats")?;
        if let Some(Fault::Hang) = self.fault_of("GetVolumeStats") {
            sleep(HANG).await;
        }
        let volumes = self.0.volumes.lock();
        if !volumes.is_published(&request.volume_id, Path::new(&request.volume_path)) {
            return Err(Status::not_found("not published there"));
        }
        let stats = volumes.stats.get(&request.volume_id);
        Ok(Response::new(stats.cloned().unwrap_or_default()))
    }

    async fn node_expand_volume(
        &self,
        request: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        self.answer(Call::Expand(request.into_inner()), |_| Ok(()))
            .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let capabilities = self.0.capabilities.lock();
        let capabilities = capabilities.iter().map(|kind| csi::NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc {
                r#type: (*kind).into(),
            })),
        });
        Ok(Response::new(csi::NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        self.check("GetNodeInfo")?;
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "fake-node".to_owned(),
            max_volumes_per_node: self.0.max_volumes.load(Ordering::Relaxed),
            ..csi::NodeGetInfoResponse::default()
        }))
    }
}

fn is_device(capability: Option<&csi::VolumeCapability>) -> bool {
    let access = capability.and_then(|capability| capability.access_type.as_ref());
    matches!(access, Some(AccessType::Block(_)))
}
