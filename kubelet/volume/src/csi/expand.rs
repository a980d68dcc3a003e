//! Expansion of CSI volumes on the node.

use cri_proto::csi::v1::{
    CapacityRange, NodeExpandVolumeRequest, node_service_capability::rpc::Type as Capability,
};

use super::{Csi, client::text, source::Source};
use crate::{
    VolumeError,
    plugin::{Growth, MountRequest},
    spec::VolumeMode,
};

impl Csi {
    /// Asks the driver to expand a volume that is ready, if it supports that on nodes.
    pub(super) async fn grow(
        &self,
        request: &MountRequest,
        bytes: i64,
    ) -> Result<Growth, VolumeError> {
        let source = Source::of(request)?;
        let client = self
            .drivers
            .client(&source.driver)?
            .of_volume(source.migrated);
        let capabilities = client.capabilities().await?;
        if !capabilities.has(Capability::ExpandVolume) {
            let why = format!(
                "NodeExpand is not supported by the CSI driver {}",
                source.driver
            );
            return Ok(Growth::Unsupported(VolumeError::Other(why.into())));
        }
        let secret = source.expand_secret.as_ref();
        let secrets = self.secrets("NodeExpandSecretRef", secret).await?;
        let (staging, path) = match source.mode {
            VolumeMode::Filesystem => (self.staging_path(&source), Self::published_path(request)),
            VolumeMode::Block => self.block_targets(request),
        };
        let stages = capabilities.has(Capability::StageUnstageVolume);
        let expanded = client
            .expand(NodeExpandVolumeRequest {
                volume_id: source.handle.clone(),
                volume_path: text(&path),
                capacity_range: Some(CapacityRange {
                    required_bytes: bytes,
                    limit_bytes: 0,
                }),
                staging_target_path: if stages {
                    text(&staging)
                } else {
                    String::new()
                },
                volume_capability: Some(source.capability(&capabilities, None)),
                secrets,
            })
            .await;
        match expanded {
            Ok(()) => Ok(Growth::Done),
            Err(error) if error.is_failed_precondition() => Ok(Growth::InUse(error.into())),
            Err(error) if error.is_final() => Ok(Growth::Refused {
                infeasible: error.is_infeasible(),
                error: error.into(),
            }),
            Err(error) => Err(error.into()),
        }
    }
}
