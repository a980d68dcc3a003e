//! Volumes that pods use as block devices, below `plugins/kubernetes.io/csi/volumeDevices`:
//! * `<volume>/data` has `vol_data.json`, and a marker file for each pod whose device is being
//!   unpublished,
//! * `staging/<volume>` is the staging path for the driver,
//! * `publish/<volume>/<uid>` is the device that the driver publishes for a pod; the symlink
//!   `pods/<uid>/volumeDevices/kubernetes.io~csi/<volume>` leads to it.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, symlink},
    path::{Path, PathBuf},
};

use cri_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, node_service_capability::rpc::Type as Capability,
};
use kubelet_pod_spec::identity::PodUid;

use super::{
    Csi,
    client::text,
    contexts::pod_info,
    journal::{begin, begin_undo, end, is_ready, load, undone},
    policy::Policy,
    source::Source,
    volume_data::{VolumeData, attachment_on_disk},
};
use crate::{
    VolumeError, blocking_at, blocking_on_own_files, entries, loop_device, mount,
    plugin::{FoundDevice, MountRequest, Mounted, PodVolume},
};

/// Name of the directory that holds all of these.
pub(super) const DIR: &str = "volumeDevices";
/// Subdirectory of a volume's own directory.
const DATA: &str = "data";
const STAGING: &str = "staging";
const PUBLISH: &str = "publish";

/// Name of the device that a volume's pods share.
pub(super) fn device_name(volume: &str) -> String {
    format!("{DIR}/{volume}")
}

/// The volume of a device whose name is from [`device_name`].
pub(super) fn volume_name(device: &str) -> Option<&str> {
    device.strip_prefix(DIR)?.strip_prefix('/')
}

/// The paths of a volume.
struct Paths {
    /// The volume's own directory.
    volume: PathBuf,
    data: PathBuf,
    staging: PathBuf,
    publish: PathBuf,
}

impl Paths {
    fn published(&self, uid: &PodUid) -> PathBuf {
        self.publish.join(uid.as_str())
    }

    /// Marks that the driver was asked to unpublish the pod's device.
    fn ending(&self, uid: &PodUid) -> PathBuf {
        self.data.join(format!("{uid}.ending"))
    }

    /// Where upstream exposes the pod's device once more and holds it open with a loop device.
    fn held(&self, uid: &PodUid) -> PathBuf {
        self.volume.join("dev").join(uid.as_str())
    }
}

impl Csi {
    fn block_paths(&self, volume: &str) -> Paths {
        let dir = self.dir().join(DIR);
        Paths {
            volume: dir.join(volume),
            data: dir.join(volume).join(DATA),
            staging: dir.join(STAGING).join(volume),
            publish: dir.join(PUBLISH).join(volume),
        }
    }

    /// The path that a volume is staged at, and the path that it is published at for a pod.
    pub(super) fn block_targets(&self, request: &MountRequest) -> (PathBuf, PathBuf) {
        let paths = self.block_paths(request.spec.inner_name());
        let published = paths.published(&request.volume.uid);
        (paths.staging, published)
    }

    pub(super) async fn stage_block(&self, request: &MountRequest) -> Result<(), VolumeError> {
        let source = Source::of(request)?;
        let name = request.spec.inner_name();
        let paths = self.block_paths(name);
        if is_mapped(request, &paths).await? {
            return Ok(());
        }
        self.give_back_predecessor(name, &paths, &source).await?;
        if is_ready(&paths.data, &paths.staging).await? {
            return Ok(());
        }
        let client = self
            .drivers
            .client(&source.driver)?
            .of_volume(source.migrated);
        let policy = Policy::of(&source.driver, &*self.host.objects).await?;
        let publish_context = self.publish_context(&source, &policy).await?;
        let capabilities = client.capabilities().await?;
        let stages = capabilities.has(Capability::StageUnstageVolume);
        let secret = source.stage_secret.as_ref().filter(|_| stages);
        let secrets = self.secrets("NodeStageSecretRef", secret).await?;
        let data = self.pod_data(request, &source);
        // Publishing needs the record too.
        let begun = begin(&paths.data, &paths.staging, stages, data).await?;
        if !stages {
            return Ok(());
        }
        let staged = client
            .stage(NodeStageVolumeRequest {
                volume_id: source.handle.clone(),
                publish_context,
                staging_target_path: text(&paths.staging),
                volume_capability: Some(source.capability(&capabilities, None)),
                secrets,
                volume_context: source.attributes.clone(),
            })
            .await;
        end(begun, &paths.data, &paths.staging, staged).await
    }

    /// Unstages a different volume that had the same name.
    async fn give_back_predecessor(
        &self,
        name: &str,
        paths: &Paths,
        source: &Source,
    ) -> Result<(), VolumeError> {
        let (data, publish) = (paths.data.clone(), paths.publish.clone());
        let (driver, handle) = (source.driver.clone(), source.handle.clone());
        let is_there = blocking_on_own_files(move || {
            let known = VolumeData::load_whole(&data)?;
            if known.is_none_or(|known| known.is_of(&driver, &handle)) {
                return Ok(false);
            }
            if !entries::children(&publish)?.is_empty() {
                let used = io::Error::other("pods use another volume of that name");
                return Err(VolumeError::io("stage at", &data, used));
            }
            Ok(true)
        });
        if is_there.await? {
            self.unstage_block(name).await?;
        }
        Ok(())
    }

    pub(super) async fn publish_block(
        &self,
        request: &MountRequest,
    ) -> Result<Mounted, VolumeError> {
        let source = Source::of(request)?;
        let paths = self.block_paths(request.spec.inner_name());
        let published = paths.published(&request.volume.uid);
        let link = request.dir.clone();
        if is_mapped(request, &paths).await? {
            let policy = Policy::of(&source.driver, &*self.host.objects).await;
            // If the policy is unavailable, leave the pod alone.
            if !policy.is_ok_and(|policy| policy.requires_republish()) {
                return Ok(Mounted::Device(link));
            }
        }
        let client = self
            .drivers
            .client(&source.driver)?
            .of_volume(source.migrated);
        let policy = Policy::of(&source.driver, &*self.host.objects).await?;
        let publish_context = self.publish_context(&source, &policy).await?;
        let capabilities = client.capabilities().await?;
        let secret = source.publish_secret.as_ref();
        let secrets = self.secrets("NodePublishSecretRef", secret).await?;
        let mut volume_context = source.attributes.clone();
        if policy.pod_info_on_mount() {
            volume_context.extend(pod_info(&request.pod, source.lifecycle));
        }
        let (publish_dir, made, target) = (paths.publish.clone(), link.clone(), published.clone());
        blocking_on_own_files(move || {
            mount::make_dir(&publish_dir, 0o750)?;
            map(&made, &target)
        })
        .await?;
        client
            .publish(NodePublishVolumeRequest {
                volume_id: source.handle.clone(),
                publish_context,
                staging_target_path: text(&paths.staging),
                target_path: text(&published),
                volume_capability: Some(source.capability(&capabilities, None)),
                readonly: source.read_only,
                secrets,
                volume_context,
            })
            .await?;
        let ending = paths.ending(&request.volume.uid);
        blocking_on_own_files(move || match fs::metadata(&published) {
            Ok(_) => {
                mount::remove_mount_point(&ending)?;
                Ok(Mounted::Device(link))
            }
            Err(error) => Err(VolumeError::io("use the device at", &published, error)),
        })
        .await
    }

    pub(super) async fn unpublish_block(&self, volume: &PodVolume) -> Result<(), VolumeError> {
        let link = self.host.volume_dir(volume);
        let paths = self.block_paths(&volume.name);
        let published = paths.published(&volume.uid);
        let ending = paths.ending(&volume.uid);
        if let Some(data) = load(&paths.data).await? {
            let client = self.drivers.client(&data.driver_name)?;
            let (held, ending) = (paths.held(&volume.uid), ending.clone());
            blocking_at(&held.clone(), move || {
                fs::write(&ending, "").map_err(|error| VolumeError::io("write", &ending, error))?;
                loop_device::detach(&held)?;
                mount::clean_up(&held)
            })
            .await?;
            let request = NodeUnpublishVolumeRequest {
                volume_id: data.volume_handle,
                target_path: text(&published),
            };
            undone(client.unpublish(request).await, &published).await?;
        }
        blocking_at(&published.clone(), move || {
            mount::clean_up(&published)?;
            // Only removed after the device, because the link marks the volume as possibly mapped.
            mount::remove_mount_point(&link)?;
            mount::remove_mount_point(&ending)
        })
        .await
    }

    /// Unstages a volume, and removes everything that is left of it.
    pub(super) async fn unstage_block(&self, volume: &str) -> Result<(), VolumeError> {
        let paths = self.block_paths(volume);
        let staging = paths.staging.clone();
        let is_staged = blocking_at(&paths.staging, move || Ok(staging.exists())).await?;
        if let (Some(data), true) = (load(&paths.data).await?, is_staged) {
            let client = self.drivers.client(&data.driver_name)?;
            let capabilities = client.capabilities().await?;
            if capabilities.has(Capability::StageUnstageVolume) {
                let data = begin_undo(&paths.data, data).await?;
                let request = NodeUnstageVolumeRequest {
                    volume_id: data.volume_handle,
                    staging_target_path: text(&paths.staging),
                };
                undone(client.unstage(request).await, &paths.staging).await?;
            }
        }
        blocking_at(&paths.staging.clone(), move || {
            mount::remove_contents(&paths.staging)?;
            mount::remove_mount_point(&paths.publish)?;
            mount::remove_contents(&paths.volume)
        })
        .await
    }

    /// The device of a volume.
    pub(super) async fn device_of_block(
        &self,
        volume: &PodVolume,
    ) -> Result<Option<FoundDevice>, VolumeError> {
        let name = device_name(&volume.name);
        let data = self.block_paths(&volume.name).data;
        blocking_on_own_files(move || {
            let attachment = attachment_on_disk(&data);
            Ok(Some(FoundDevice { name, attachment }))
        })
        .await
    }

    /// The devices of all volumes that have a directory.
    pub(super) async fn blocks_on_disk(&self) -> Result<Vec<FoundDevice>, VolumeError> {
        let dir = self.dir().join(DIR);
        blocking_on_own_files(move || {
            let volumes = entries::children(&dir)?.into_iter();
            Ok(volumes
                .filter(|(name, _)| name != STAGING && name != PUBLISH)
                .map(|(name, path)| FoundDevice {
                    name: device_name(&name),
                    attachment: attachment_on_disk(&path.join(DATA)),
                })
                .collect())
        })
        .await
    }
}

/// Whether the pod has its published device, and the device is not being unpublished.
async fn is_mapped(request: &MountRequest, paths: &Paths) -> Result<bool, VolumeError> {
    let (link, uid) = (request.dir.clone(), &request.volume.uid);
    let (published, ending) = (paths.published(uid), paths.ending(uid));
    blocking_on_own_files(move || {
        let is_linked = fs::read_link(&link).is_ok_and(|target| target == published);
        let found = fs::metadata(&published);
        // After a reboot of the node it is an empty file.
        let is_device = found.is_ok_and(|found| found.file_type().is_block_device());
        Ok(is_linked && is_device && !ending.exists())
    })
    .await
}

/// Creates the symlink through which containers get the device. The symlink is created before the
/// device, because it marks the volume as possibly mapped.
fn map(link: &Path, published: &Path) -> Result<(), VolumeError> {
    if fs::read_link(link).is_ok_and(|target| target == published) {
        return Ok(());
    }
    mount::remove_mount_point(link)?;
    if let Some(parent) = link.parent() {
        mount::make_dir(parent, 0o750)?;
    }
    symlink(published, link).map_err(|error| VolumeError::io("create", link, error))
}
