//! Volumes that pods see as directories:
//! * staged at `plugins/kubernetes.io/csi/<driver>/<hash of the handle>/globalmount`,
//! * published at `pods/<uid>/volumes/kubernetes.io~csi/<name>/mount`,
//!
//! each with its `vol_data.json` beside it.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use cri_proto::csi::v1::{
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, node_service_capability::rpc::Type as Capability,
};
use tracing::warn;

use super::{
    Csi, block,
    client::CsiError,
    contexts::pod_info,
    policy::Policy,
    source::{Lifecycle, Source, attachment_name, is_sha256, sha256},
    volume_data::{VolumeData, attachment_on_disk},
};
use crate::{
    mount_info,
    volume::{
        VolumeError, blocking_at, blocking_on_own_files, disk, mount, ownership,
        plugin::{FoundDevice, MountRequest, Mounted, PodVolume},
    },
};

/// Where the driver stages, in the directory of the device.
const STAGED: &str = "globalmount";
/// Where the driver publishes, in the volume's directory.
const PUBLISHED: &str = "mount";

/// Name of the device that a volume's pods share: its directory, below the plugin's.
pub(super) fn device_name(driver: &str, handle: &str) -> String {
    format!("{driver}/{}", sha256(&[handle]))
}

/// Text as gRPC carries it.
pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Csi {
    /// Where a persistent volume is staged.
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
        // What is published was staged, or its driver stages nothing.
        if is_ready(&request.dir, &published).await? {
            return Ok(());
        }
        self.take_away_other_label(request, &dir, &target).await?;
        if is_ready(&dir, &target).await? {
            return Ok(());
        }
        let client = self.drivers.client(&source.driver)?;
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

    /// Undoes a staging with another SELinux label than that of the request: an earlier pod's.
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
        if used_at(target).await?.is_some() {
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
            // One that cannot be read now is no reason to disturb the pod.
            if !policy.is_ok_and(|policy| policy.requires_republish()) {
                return Ok(Mounted::Path(target));
            }
        }
        let client = self.drivers.client(&source.driver)?;
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
            let target = target.clone();
            blocking_at(&target.clone(), move || {
                ownership::set(&target, group, false)
            })
            .await?;
        }
        end(begun, dir, &target, published).await?;
        Ok(Mounted::Path(target))
    }

    /// What is written down of a volume for one pod.
    pub(super) fn pod_data(&self, request: &MountRequest, source: &Source) -> VolumeData {
        let node = &self.host.options.node_name;
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
                // One that was killed before it wrote down what it did has left it.
                unmount(&target).await?;
            }
            // The driver was not asked for it yet, or no more has to be.
            None => unmount(&target).await?,
        }
        remove(dir, target).await
    }

    /// Undoes the staging of a device.
    pub(super) async fn unstage_directory(&self, device: &str) -> Result<(), VolumeError> {
        let dir = self.dir().join(device);
        let target = dir.join(STAGED);
        match load(&dir).await? {
            Some(data) => {
                if let Some(place) = used_at(&target).await? {
                    let why = format!("it is still mounted at {}", place.display());
                    let used = io::Error::other(why);
                    return Err(VolumeError::io("unstage", &target, used));
                }
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
            for (driver, path) in disk::children(&dir)? {
                if driver == block::DIR || !path.is_dir() {
                    continue;
                }
                // What else is there is its driver's own.
                let devices = disk::children(&path)?.into_iter();
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

/// What is written down in a directory.
pub(super) async fn load(dir: &Path) -> Result<Option<VolumeData>, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || VolumeData::load(&dir)).await
}

/// As [`load`], where it can be written anew.
async fn load_whole(dir: &Path) -> Result<Option<VolumeData>, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || VolumeData::load_whole(&dir)).await
}

/// Whether what is written down in a directory is ready at the path.
pub(super) async fn is_ready(dir: &Path, target: &Path) -> Result<bool, VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    blocking_at(&target.clone(), move || {
        match VolumeData::load_whole(&dir)? {
            Some(data) => data.is_ready(&target),
            None => Ok(false),
        }
    })
    .await
}

/// What was written down of a volume before its driver is asked for it.
pub(super) struct Begun {
    data: VolumeData,
    /// It was the first time.
    is_new: bool,
}

/// Makes the directory of a volume, with the mount point where that is not the driver's to
/// make, and writes down what there is to be. What is written there already stays.
pub(super) async fn begin(
    dir: &Path,
    target: &Path,
    makes_target: bool,
    data: VolumeData,
) -> Result<Begun, VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    blocking_at(&target.clone(), move || {
        mount::make_dir(&dir, 0o750)?;
        if makes_target {
            mount::make_dir(&target, 0o750)?;
        }
        let known = VolumeData::load_whole(&dir)?;
        let is_new = known.is_none();
        if let Some(known) = known
            && known.is_ready(&target)?
        {
            return Ok(Begun {
                data: known,
                is_new,
            });
        }
        data.save(&dir)?;
        Ok(Begun { data, is_new })
    })
    .await
}

/// Writes down that a volume is not ready any more, before its driver is asked to take it
/// away: whoever wants it then asks for it anew, as the driver may be at it still.
pub(super) async fn begin_undo(
    dir: &Path,
    mut data: VolumeData,
) -> Result<VolumeData, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || {
        if data.note_unready() {
            data.save(&dir)?;
        }
        Ok(data)
    })
    .await
}

/// Writes down what came of asking the driver. Where it certainly did nothing, nothing is
/// left.
pub(super) async fn end(
    begun: Begun,
    dir: &Path,
    target: &Path,
    outcome: Result<(), CsiError>,
) -> Result<(), VolumeError> {
    let (dir, target) = (dir.to_owned(), target.to_owned());
    let Begun { mut data, is_new } = begun;
    match outcome {
        Ok(()) => {
            blocking_at(&target.clone(), move || {
                data.note_ready(&target)?;
                data.save(&dir)
            })
            .await
        }
        Err(error) => {
            if error.is_final()
                && is_new
                && let Err(error) = remove(dir.clone(), target).await
            {
                warn!(dir = %dir.display(), %error, "cannot remove what a driver did not use");
            }
            Err(error.into())
        }
    }
}

/// Whether a driver has taken a volume away from a path. One that does not know the volume
/// has nothing of it any more, as an ephemeral one that it deleted before it could say so,
/// unless something of it is there still.
pub(super) async fn undone(
    outcome: Result<(), CsiError>,
    target: &Path,
) -> Result<(), VolumeError> {
    let Err(error) = outcome else {
        return Ok(());
    };
    if !error.is_not_found() {
        return Err(error.into());
    }
    let path = target.to_owned();
    let is_there = blocking_at(target, move || {
        let is_device = fs::symlink_metadata(&path)
            .is_ok_and(|metadata| metadata.file_type().is_block_device());
        Ok(is_device || mount::is_mounted(&path)?)
    });
    if is_there.await? {
        return Err(error.into());
    }
    warn!(path = %target.display(), %error, "what its driver does not know is given back");
    Ok(())
}

/// Where else the same is mounted as at a path, as it is where a volume is published from what
/// was staged: to take it away from below would harm a pod.
async fn used_at(target: &Path) -> Result<Option<PathBuf>, VolumeError> {
    let target = target.to_owned();
    blocking_on_own_files(move || {
        let others = mount_info::elsewhere(&target)
            .map_err(|error| VolumeError::io("look for mounts at", &target, error))?;
        Ok(others.into_iter().next().map(|other| other.mount_point))
    })
    .await
}

async fn unmount(target: &Path) -> Result<(), VolumeError> {
    let target = target.to_owned();
    blocking_at(&target.clone(), move || mount::unmount_all(&target)).await
}

async fn remove(dir: PathBuf, target: PathBuf) -> Result<(), VolumeError> {
    blocking_at(&target.clone(), move || VolumeData::remove(&dir, &target)).await
}
