//! Volumes of drivers that attach: mounted once on the node for all of their pods, at
//! `plugins/kubernetes.io/flexvolume/<driver>/mounts/<name>`, as upstream.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use kubelet_pod_spec::{field::Faults, names, validation::mounts};
use tracing::warn;

use super::{
    FlexVolume, NAME,
    driver::{Call, Driver},
    source::FlexSource,
};
use crate::{
    VolumeError, attachment, blocking_at, blocking_on_own_files,
    entries::children,
    file_system, mount,
    plugin::{FoundDevice, MountRequest, PodVolume},
};

/// Directory of the volumes below a driver's.
const MOUNTS: &str = "mounts";

/// Name of the device of a volume: its directory below the plugin's.
pub(super) fn device_name(driver: &str, volume: &str) -> String {
    format!("{driver}/{MOUNTS}/{volume}")
}

/// The driver and the volume of a device.
fn parts(device: &str) -> Option<(&str, &str)> {
    let (dir, volume) = device.rsplit_once('/')?;
    let driver = dir.strip_suffix(MOUNTS)?.strip_suffix('/')?;
    mounts::flex_volume_driver(driver).ok()?;
    names::path_segment(volume).ok()?;
    (!volume.is_empty()).then_some((driver, volume))
}

/// Unique name of a volume among the node's attached volumes. Upstream ignores the response to
/// `getvolumename`, too.
pub(super) fn unique_name(driver: &str, volume: &str) -> String {
    format!("{driver}/{volume}")
}

impl FlexVolume {
    fn devices_dir(&self) -> PathBuf {
        self.host.plugin_dir(NAME)
    }

    /// Where a volume is mounted for all of its pods.
    pub(super) fn device_dir(&self, driver: &str, volume: &str) -> PathBuf {
        self.devices_dir().join(device_name(driver, volume))
    }

    /// Mounts a volume for all of its pods, once it is attached.
    pub(super) async fn mount_device(&self, request: &MountRequest) -> Result<(), VolumeError> {
        let source = FlexSource::valid(&request.spec)?;
        let driver = self.drivers.get(source.driver).await?;
        let dir = self.device_dir(source.driver, &request.volume.name);
        if is_mounted(&dir).await? {
            return Ok(());
        }
        if let Some(name) = &request.attachment {
            let missing = attachment::missing_in_node(&*self.host.objects, name);
            if let Some(why) = missing.await? {
                return Err(VolumeError::NotAttached {
                    volume: request.volume.name.clone(),
                    driver: source.driver.to_owned(),
                    why: why.to_owned(),
                });
            }
        }
        let device = self.attached_device(request, &source, &driver).await?;
        let path = dir.clone();
        blocking_on_own_files(move || mount::make_dir(&path, 0o750)).await?;
        let json = source.json()?;
        let arguments = [dir.as_os_str(), OsStr::new(&device), OsStr::new(&json)];
        let mounted = driver.call(Call::MountDevice, &arguments).await?;
        // Without a device, a driver attaches nothing and mounts for each pod.
        if mounted.is_some() || device.is_empty() {
            return Ok(());
        }
        let disk = checked_disk(&driver, &device)?;
        let mut faults = Faults::default();
        if !source.fs_type.is_empty() {
            let field = source.field().child("fsType");
            faults.text(&field, source.fs_type, mounts::file_system_type);
        }
        faults.into_result()?;
        let fs_type = source.fs_type.to_owned();
        let options = [if source.read_only { "ro" } else { "rw" }.to_owned()];
        blocking_at(&dir.clone(), move || {
            file_system::format_and_mount(&disk, &dir, &fs_type, &options)
        })
        .await
    }

    /// The device of an attached volume; empty if its driver has none.
    pub(super) async fn attached_device(
        &self,
        request: &MountRequest,
        source: &FlexSource<'_>,
        driver: &Driver,
    ) -> Result<String, VolumeError> {
        let device = match &request.attachment {
            Some(name) => attachment::device_path(&*self.host.objects, name).await?,
            None => String::new(),
        };
        let json = source.json()?;
        let arguments = [OsStr::new(&device), OsStr::new(&json)];
        let attached = driver.call(Call::WaitForAttach, &arguments).await?;
        Ok(attached.map_or(device, |response| response.device().to_owned()))
    }

    /// Undoes [`Self::mount_device`]. If the driver was removed, its volume is only unmounted.
    pub(super) async fn unmount_device(&self, device: &str) -> Result<(), VolumeError> {
        let Some((name, _)) = parts(device) else {
            let why = format!("{device:?} is no device of {NAME}");
            return Err(VolumeError::Other(why.into()));
        };
        let dir = self.devices_dir().join(device);
        if is_mounted(&dir).await? {
            match self.drivers.find(name).await? {
                Some(driver) => {
                    let mounted = dir.clone();
                    blocking_on_own_files(move || mount::ensure_unused(&mounted)).await?;
                    driver.call(Call::UnmountDevice, &[dir.as_os_str()]).await?;
                }
                None => warn!(
                    driver = name, path = %dir.display(),
                    "unmounting a device without its driver, which does not exist any more"
                ),
            }
        }
        blocking_at(&dir.clone(), move || mount::clean_up(&dir)).await
    }

    /// The device of a pod's volume, if it has one. Lists directories, because a mount may hang.
    pub(super) async fn device_of(
        &self,
        volume: &PodVolume,
    ) -> Result<Option<FoundDevice>, VolumeError> {
        let name = device_name(&volume.plugin, &volume.name);
        let found = self.devices().await?.into_iter();
        let mut found = found.filter(|device| device.name == name);
        Ok(found.next())
    }

    /// All devices on the node.
    pub(super) async fn devices(&self) -> Result<Vec<FoundDevice>, VolumeError> {
        let root = self.devices_dir();
        let names = blocking_on_own_files(move || device_names(&root)).await?;
        let is_standalone = self.host.objects.is_standalone();
        let found = names.into_iter().filter_map(|name| {
            let (driver, volume) = parts(&name)?;
            let attachment = (!is_standalone).then(|| unique_name(driver, volume));
            Some(FoundDevice { name, attachment })
        });
        Ok(found.collect())
    }
}

/// Names of the entries where devices may be. Blocks.
fn device_names(root: &Path) -> Result<Vec<String>, VolumeError> {
    let mut names = Vec::new();
    for (vendor, path) in directories(root)? {
        for (driver, path) in directories(&path)? {
            if driver == MOUNTS {
                let volumes = children(&path)?.into_iter();
                names.extend(volumes.map(|(volume, _)| device_name(&vendor, &volume)));
                continue;
            }
            let driver = format!("{vendor}/{driver}");
            let volumes = children(&path.join(MOUNTS))?.into_iter();
            names.extend(volumes.map(|(volume, _)| device_name(&driver, &volume)));
        }
    }
    Ok(names)
}

/// The directories in a directory, without links. Blocks.
fn directories(dir: &Path) -> Result<Vec<(String, PathBuf)>, VolumeError> {
    let mut found = children(dir)?;
    found.retain(|(_, path)| path.symlink_metadata().is_ok_and(|found| found.is_dir()));
    Ok(found)
}

/// Whether something is mounted at a path. Reads only the mount table, so that a file system that
/// hangs does not delay it.
pub(super) async fn is_mounted(dir: &Path) -> Result<bool, VolumeError> {
    let dir = dir.to_owned();
    blocking_on_own_files(move || mount::is_mounted(&dir)).await
}

/// The device that a driver returned, for programs that mount, check and expand file systems.
pub(super) fn checked_disk(driver: &Driver, device: &str) -> Result<PathBuf, VolumeError> {
    match mounts::operand_path(device) {
        Ok(()) => Ok(device.into()),
        Err(rule) => Err(driver.failed(format!("its device {device:?} {rule}"))),
    }
}
