//! Block devices, as the kernel shows them. Everything here blocks.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use tracing::warn;

use crate::{VolumeError, entries::children, mount};

/// The file systems of the kernel, and the program for its multipath devices.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(super) sys: PathBuf,
    pub(super) dev: PathBuf,
    pub(super) multipath: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            dev: "/dev".into(),
            multipath: "multipath".into(),
        }
    }
}

impl Kernel {
    /// The multipath device on top of one of these block devices.
    pub(super) fn multipath(&self, devices: &[PathBuf]) -> Result<Option<PathBuf>, VolumeError> {
        let maps = children(&self.sys.join("block"))?.into_iter();
        // Others, such as those of LVM, are what is on the disk.
        let is_multipath = |dir: &Path| {
            let uuid = fs::read_to_string(dir.join("dm/uuid")).unwrap_or_default();
            uuid.starts_with("mpath-")
        };
        let maps: Vec<_> = maps
            .filter(|(map, dir)| map.starts_with("dm-") && is_multipath(dir))
            .collect();
        for device in devices {
            let Some(name) = block_name(device) else {
                continue;
            };
            let mut maps = maps.iter();
            let map = maps.find(|(_, dir)| dir.join("slaves").join(&name).exists());
            if let Some((map, _)) = map {
                return Ok(Some(self.dev.join(map)));
            }
        }
        Ok(None)
    }

    /// Removes block devices, and the multipath devices on top of them first.
    ///
    /// # Errors
    /// A device is in use, or a multipath device cannot be removed. Then all that are left stay.
    pub(super) fn remove(&self, devices: &[PathBuf]) -> Result<(), VolumeError> {
        while let Some(map) = self.multipath(devices)? {
            check_unused(&map)?;
            let mut command = Command::new(&self.multipath);
            command.arg("-f").arg(&map);
            mount::run(command)?;
            if self.multipath(devices)?.as_ref() == Some(&map) {
                let busy = io::Error::from(io::ErrorKind::ResourceBusy);
                return Err(VolumeError::io("remove the multipath device", &map, busy));
            }
        }
        for device in devices {
            check_unused(device)?;
        }
        for device in devices {
            let mut command = Command::new("blockdev");
            command.arg("--flushbufs").arg(device);
            let device_name = device.display();
            if let Err(error) = mount::run(command) {
                warn!(device = %device_name, %error, "cannot flush a block device");
            }
            if let Err(error) = self.delete(device) {
                warn!(device = %device_name, %error, "cannot remove a block device");
            }
        }
        Ok(())
    }

    /// Removes a block device. One that is gone is no error.
    fn delete(&self, device: &Path) -> Result<(), VolumeError> {
        let Some(name) = block_name(device) else {
            return Ok(());
        };
        let file = self.sys.join("block").join(name).join("device/delete");
        if !file.exists() {
            return Ok(());
        }
        fs::write(&file, "1").map_err(|error| VolumeError::io("write", &file, error))
    }

    /// Makes the kernel look for logical units at a SCSI host: `CHANNEL TARGET LUN`, each of which
    /// may be `-` for all.
    pub(super) fn scan(&self, host: &str, what: &str) -> Result<(), VolumeError> {
        let file = self.sys.join("class/scsi_host").join(host).join("scan");
        fs::write(&file, what).map_err(|error| VolumeError::io("write", &file, error))
    }

    /// The links of a directory of `/dev/disk` that lead to a device, with their names.
    pub(super) fn links(&self, kind: &str) -> Result<Vec<(String, PathBuf)>, VolumeError> {
        let mut links = children(&self.dev.join("disk").join(kind))?;
        links.retain(|(_, link)| link.exists());
        Ok(links)
    }
}

/// Fails if a block device is mounted, or used by the kernel otherwise. One that is gone is not.
fn check_unused(device: &Path) -> Result<(), VolumeError> {
    // On block devices, the kernel refuses `O_EXCL` while they have an exclusive user.
    let opened = rustix::fs::open(device, OFlags::EXCL | OFlags::CLOEXEC, Mode::empty());
    match opened {
        Err(Errno::NOENT | Errno::NXIO | Errno::NODEV) | Ok(_) => Ok(()),
        Err(error) => Err(VolumeError::io(
            "remove the block device",
            device,
            error.into(),
        )),
    }
}

/// The kernel's name of a block device.
fn block_name(device: &Path) -> Option<String> {
    let real = fs::canonicalize(device).ok()?;
    Some(real.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_as_long_as_their_multipath_device() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel {
            sys: dir.path().join("sys"),
            dev: dir.path().join("dev"),
            multipath: "false".into(),
        };
        let slaves = kernel.sys.join("block/dm-0/slaves");
        fs::create_dir_all(&slaves).unwrap();
        fs::create_dir_all(&kernel.dev).unwrap();
        let device = kernel.dev.join("sda");
        let deletion = kernel.sys.join("block/sda/device/delete");
        fs::create_dir_all(deletion.parent().unwrap()).unwrap();
        fs::write(&deletion, "").unwrap();
        fs::write(&device, "").unwrap();
        let devices = [device];
        assert_eq!(kernel.multipath(&devices).unwrap(), None);
        fs::write(slaves.join("sda"), "").unwrap();
        assert_eq!(
            kernel.multipath(&devices).unwrap(),
            None,
            "it is not multipath"
        );
        let uuid = kernel.sys.join("block/dm-0/dm/uuid");
        fs::create_dir_all(uuid.parent().unwrap()).unwrap();
        fs::write(uuid, "mpath-3600\n").unwrap();
        let map = kernel.dev.join("dm-0");
        assert_eq!(kernel.multipath(&devices).unwrap(), Some(map));
        kernel.remove(&devices).unwrap_err();
        assert_eq!(fs::read_to_string(&deletion).unwrap(), "");
    }
}
