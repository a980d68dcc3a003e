//! Volumes that pods use as directories:
//! * staged at `plugins/kubernetes.io/csi/<driver>/<hash of the handle>/globalmount`,
//! * published at `pods/<uid>/volumes/kubernetes.io~csi/<name>/mount`,
//!
//! each with its `vol_data.json` next to it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use cri_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, node_service_capability::rpc::Type as Capability,
};

use super::{
    Csi, block,
    client::text,
    contexts::pod_info,
    journal::{begin, begin_undo, end, is_ready, load, load_whole, remove, undone, unmount},
    policy::Policy,
    source::{Lifecycle, Source, attachment_name, is_sha256, sha256},
    volume_data::{VolumeData, attachment_on_disk},
};
use crate::{
    VolumeError, blocking_at, blocking_on_own_files, entries, mount, ownership,
    plugin::{FoundDevice, MountRequest, Mounted, PodVolume},
};

/// Where the driver stages, below the directory of the device.
const STAGED: &str = "globalmount";
/// Where the driver publishes, below the volume's directory.
const PUBLISHED: &str = "mount";

/// Name of the device that a volume's pods share: its directory, relative to the plugin's.
pub(super) fn device_name(driver: &str, handle: &str) -> String {
    format!("{driver}/{}", sha256(&[handle]))
}

impl Csi {
    /// Staging path of a persistent volume.
    pub(super) fn staging_path(&self, source: &Source) -> PathBuf {
        let name = device_name(&source.driver, &source.handle);
        self.dir().join(name).join(STAGED)
    }

    pub(super) fn published_path(request: &MountRequest) -> PathBuf {
        request.dir.join(PUBLISHED)
    }

    pub(super) async fn stage_directory(&self, request: &MountRequest) -> Result<(), VolumeError> {
        let source = Source::of(request)?;
        let target = self.staging_path(&source);
        let dir = self.dir().join(device_name(&source.driver, &source.handle));
        let published = Self::published_path(request);
        // A published volume has been staged, unless its driver does not stage.
        if is_ready(&request.dir, &published).await? {
            return Ok(());
        }
        self.take_away_other_label(request, &dir, &target).await?;
        if is_ready(&dir, &target).await? {
            return Ok(());
        }
        let client = self
            .drivers
            .client(&source.driver)?
            .of_volume(source.migrated);
        let policy = Policy::of(&source.driver, &*self.host.objects).await?;
        let publish_context = self.publish_context(&source, &policy).await?;
        let capabilities = client.capabilities().await?;
        if !capabilities.has(Capability::StageUnstageVolume) {
            return Ok(());
        }
        let secret = source.stage_secret.as_ref();
        let secrets = self.secrets("NodeStageSecretRef", secret).await?;
        let delegates = capabilities.has(Capability::VolumeMountGroup);
        let group = request.fs_group.filter(|_| delegates);
        let mut data = VolumeData::new(&source.driver, &source.handle);
        data.selinux_label = request.selinux_label.clone().unwrap_or_default();
        let begun = begin(&dir, &target, true, data).await?;
        let staged = client
            .stage(NodeStageVolumeRequest {
                volume_id: source.handle.clone(),
                publish_context,
                staging_target_path: text(&target),
                volume_capability: Some(
                    source.capability(&capabilities, group.map(|group| group.gid)),
                ),
                secrets,
                volume_context: source.attributes.clone(),
            })
            .await;
        end(begun, &dir, &target, staged).await
    }

    /// Unstages a volume that was staged with a different SELinux label, for an earlier pod.
    async fn take_away_other_label(
        &self,
        request: &MountRequest,
        dir: &Path,
        target: &Path,
    ) -> Result<(), VolumeError> {
        let label = request.selinux_label.as_deref().unwrap_or_default();
        let found = load_whole(dir).await?;
        if found.is_none_or(|data| data.selinux_label == label) {
            return Ok(());
        }
        let place = target.to_owned();
        if blocking_on_own_files(move || mount::used_at(&place))
            .await?
            .is_some()
        {
            return Err(VolumeError::OtherLabel(request.volume.name.clone()));
        }
        match &request.device {
            Some(device) => self.unstage_directory(&device.name).await,
            None => Ok(()),
        }
    }

    pub(super) async fn publish_directory(
        &self,
        request: &MountRequest,
    ) -> Result<Mounted, VolumeError> {
        let source = Source::of(request)?;
        let (dir, target) = (&request.dir, Self::published_path(request));
        let objects = &*self.host.objects;
        if is_ready(dir, &target).await? {
            let policy = Policy::of(&source.driver, objects).await;
            // If the policy is unavailable, leave the pod alone.
            if !policy.is_ok_and(|policy| policy.requires_republish()) {
                return Ok(Mounted::Path(target));
            }
        }
        let client = self
            .drivers
            .client(&source.driver)?
            .of_volume(source.migrated);
        let policy = Policy::of(&source.driver, objects).await?;
        policy.check(&source.driver, source.lifecycle)?;
        let capabilities = client.capabilities().await?;
        let staging = (source.lifecycle == Lifecycle::Persistent
            && capabilities.has(Capability::StageUnstageVolume))
        .then(|| text(&self.staging_path(&source)));
        let publish_context = self.publish_context(&source, &policy).await?;
        let secret = source.publish_secret.as_ref();
        let mut secrets = self.secrets("NodePublishSecretRef", secret).await?;
        let mut volume_context = source.attributes.clone();
        if policy.pod_info_on_mount() {
            volume_context.extend(pod_info(&request.pod, source.lifecycle));
        }
        let tokens = self.tokens(&request.pod, &policy).await?;
        if policy.tokens_in_secrets() {
            secrets.extend(tokens);
        } else {
            volume_context.extend(tokens);
        }
        let delegates = capabilities.has(Capability::VolumeMountGroup);
        let (its_group, our_group) = match request.fs_group {
            Some(group) if delegates => (Some(group.gid), None),
            group => (None, group.filter(|_| policy.changes_group(&source))),
        };
        let begun = begin(dir, &target, false, self.pod_data(request, &source)).await?;
        let published = client
            .publish(NodePublishVolumeRequest {
                volume_id: source.handle.clone(),
                publish_context,
                staging_target_path: staging.unwrap_or_default(),
                target_path: text(&target),
                volume_capability: Some(source.capability(&capabilities, its_group)),
                readonly: source.read_only,
                secrets,
                volume_context,
            })
            .await;
        if let (Ok(()), Some(group)) = (&published, our_group) {
            let (target, progress) = (target.clone(), Arc::clone(&request.ownership_progress));
            blocking_at(&target.clone(), move || {
                ownership::set(&target, group, false, &progress)
            })
            .await?;
        }
        end(begun, dir, &target, published).await?;
        Ok(Mounted::Path(target))
    }

    /// The record of a volume for one pod.
    pub(super) fn pod_data(&self, request: &MountRequest, source: &Source) -> VolumeData {
        let node = &self.host.node_name;
        let mut data = VolumeData::new(&source.driver, &source.handle);
        data.spec_vol_id = request.spec.inner_name().to_owned();
        data.node_name.clone_from(node);
        data.attachment_id = attachment_name(&source.handle, &source.driver, node);
        data.volume_lifecycle_mode = source.lifecycle.as_str().to_owned();
        data.selinux_label = request.selinux_label.clone().unwrap_or_default();
        data
    }

    pub(super) async fn unpublish_directory(&self, volume: &PodVolume) -> Result<(), VolumeError> {
        let dir = self.host.volume_dir(volume);
        let target = dir.join(PUBLISHED);
        match load(&dir).await? {
            Some(data) => {
                let client = self.drivers.client(&data.driver_name)?;
                let data = begin_undo(&dir, data).await?;
                let request = NodeUnpublishVolumeRequest {
                    volume_id: data.volume_handle,
                    target_path: text(&target),
                };
                undone(client.unpublish(request).await, &target).await?;
                // A driver that was killed before it recorded its mount has left the mount behind.
                unmount(&target).await?;
            }
            // The driver has not been asked to publish yet, or has unpublished the volume already.
            None => unmount(&target).await?,
        }
        remove(dir, target).await
    }

    /// Unstages a device.
    pub(super) async fn unstage_directory(&self, device: &str) -> Result<(), VolumeError> {
        let dir = self.dir().join(device);
        let target = dir.join(STAGED);
        match load(&dir).await? {
            Some(data) => {
                let staged = target.clone();
                blocking_on_own_files(move || mount::ensure_unused(&staged)).await?;
                let client = self.drivers.client(&data.driver_name)?;
                let capabilities = client.capabilities().await?;
                if capabilities.has(Capability::StageUnstageVolume) {
                    let data = begin_undo(&dir, data).await?;
                    let request = NodeUnstageVolumeRequest {
                        volume_id: data.volume_handle,
                        staging_target_path: text(&target),
                    };
                    undone(client.unstage(request).await, &target).await?;
                    unmount(&target).await?;
                }
            }
            None => unmount(&target).await?,
        }
        remove(dir, target).await
    }

    pub(super) async fn device_of_directory(
        &self,
        volume: &PodVolume,
    ) -> Result<Option<FoundDevice>, VolumeError> {
        let data = load(&self.host.volume_dir(volume)).await?;
        let ephemeral = Lifecycle::Ephemeral.as_str();
        let persistent = data.filter(|data| data.volume_lifecycle_mode != ephemeral);
        Ok(persistent.map(|data| FoundDevice {
            name: device_name(&data.driver_name, &data.volume_handle),
            attachment: data.attachment(),
        }))
    }

    /// The devices that were staged as directories.
    pub(super) async fn directories_on_disk(&self) -> Result<Vec<FoundDevice>, VolumeError> {
        let dir = self.dir();
        blocking_on_own_files(move || {
            let mut found = Vec::new();
            for (driver, path) in entries::children(&dir)? {
                if driver == block::DIR || !path.is_dir() {
                    continue;
                }
                // Other entries belong to the driver.
                let devices = entries::children(&path)?.into_iter();
                let devices = devices.filter(|(name, _)| is_sha256(name));
                found.extend(devices.map(|(name, path)| FoundDevice {
                    name: format!("{driver}/{name}"),
                    attachment: attachment_on_disk(&path),
                }));
            }
            Ok(found)
        })
        .await
    }
}
