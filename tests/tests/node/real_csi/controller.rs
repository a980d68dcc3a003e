//! The controller service of a CSI driver, as far as Kubernetes' provisioner, attacher and resizer
//! use it. The kubelet does not use it, so its messages are defined here.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context as _, Result};
use cri_proto::csi::v1::{
    CapacityRange, VolumeCapability,
    volume_capability::{
        AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode as Access,
    },
};
use prost::Message;
use tonic::{
    Request,
    client::Grpc,
    codegen::http::uri::PathAndQuery,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::volume::Mode;

#[derive(Clone, PartialEq, Message)]
struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    volume_capabilities: Vec<VolumeCapability>,
}

#[derive(Clone, PartialEq, Message)]
struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    volume: Option<Created>,
}

/// A volume that the driver created.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Created {
    /// The driver's ID of the volume.
    #[prost(string, tag = "2")]
    pub volume_id: String,
    /// Attributes that the driver expects back with the volume.
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: BTreeMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteVolumeRequest {
    #[prost(string, tag = "1")]
    volume_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerPublishVolumeRequest {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(string, tag = "2")]
    node_id: String,
    #[prost(message, optional, tag = "3")]
    volume_capability: Option<VolumeCapability>,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(string, tag = "2")]
    node_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerExpandVolumeRequest {
    #[prost(string, tag = "1")]
    volume_id: String,
    #[prost(message, optional, tag = "2")]
    capacity_range: Option<CapacityRange>,
    #[prost(message, optional, tag = "4")]
    volume_capability: Option<VolumeCapability>,
}

#[derive(Clone, PartialEq, Message)]
struct ControllerExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    node_expansion_required: bool,
}

/// An empty response.
#[derive(Clone, PartialEq, Message)]
struct Done {}

/// A client of the driver's controller service.
#[derive(Debug)]
pub(crate) struct Controller(Channel);

impl Controller {
    /// Connects to the driver behind this socket.
    pub(crate) async fn at(socket: &Path) -> Result<Self> {
        let endpoint = Endpoint::new(format!("unix://{}", socket.display()))?;
        let channel = endpoint.connect().await.context("no CSI driver")?;
        Ok(Self(channel))
    }

    /// `CreateVolume`.
    pub(crate) async fn create(&self, name: &str, bytes: i64, mode: Mode) -> Result<Created> {
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: range(bytes),
            volume_capabilities: vec![capability(mode)],
        };
        let answer: CreateVolumeResponse = self.call("CreateVolume", request).await?;
        answer.volume.context("CreateVolume made nothing")
    }

    /// `DeleteVolume`.
    pub(crate) async fn delete(&self, id: &str) -> Result<()> {
        let volume_id = id.to_owned();
        let request = DeleteVolumeRequest { volume_id };
        let Done {} = self.call("DeleteVolume", request).await?;
        Ok(())
    }

    /// `ControllerPublishVolume`.
    pub(crate) async fn attach(&self, id: &str, node: &str, mode: Mode) -> Result<()> {
        let request = ControllerPublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(capability(mode)),
        };
        let Done {} = self.call("ControllerPublishVolume", request).await?;
        Ok(())
    }

    /// `ControllerUnpublishVolume`.
    pub(crate) async fn detach(&self, id: &str, node: &str) -> Result<()> {
        let request = ControllerUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            node_id: node.to_owned(),
        };
        let Done {} = self.call("ControllerUnpublishVolume", request).await?;
        Ok(())
    }

    /// `ControllerExpandVolume`.
    pub(crate) async fn expand(&self, id: &str, bytes: i64, mode: Mode) -> Result<()> {
        let request = ControllerExpandVolumeRequest {
            volume_id: id.to_owned(),
            capacity_range: range(bytes),
            volume_capability: Some(capability(mode)),
        };
        let answer: ControllerExpandVolumeResponse =
            self.call("ControllerExpandVolume", request).await?;
        let is_right = answer.capacity_bytes == bytes && answer.node_expansion_required;
        anyhow::ensure!(is_right, "ControllerExpandVolume: {answer:?}");
        Ok(())
    }

    async fn call<Q, A>(&self, method: &'static str, request: Q) -> Result<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.0.clone());
        grpc.ready().await?;
        let path: PathAndQuery = format!("/csi.v1.Controller/{method}").parse()?;
        let codec = ProstCodec::<Q, A>::default();
        let answer = grpc.unary(Request::new(request), path, codec).await;
        Ok(answer.context(method)?.into_inner())
    }
}

const fn range(bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange {
        required_bytes: bytes,
        limit_bytes: 0,
    })
}

fn capability(mode: Mode) -> VolumeCapability {
    let access_type = match mode {
        Mode::Filesystem => AccessType::Mount(MountVolume::default()),
        Mode::Block => AccessType::Block(BlockVolume {}),
    };
    VolumeCapability {
        access_type: Some(access_type),
        access_mode: Some(AccessMode {
            mode: Access::SingleNodeWriter.into(),
        }),
    }
}
