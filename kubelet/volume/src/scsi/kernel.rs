//! Block devices, as the kernel shows them. Everything here blocks.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use tracing::warn;

use crate::{VolumeError, entries::children, mount};

/// The file systems of the kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(super) sys: PathBuf,
    pub(super) dev: PathBuf,
}

impl Default for Kernel {
    fn default() -> Self {
        Self {
            sys: "/sys".into(),
            dev: "/dev".into(),
        }
    }
}

impl Kernel {
    /// The multipath device on top of one of these block devices.
    pub(super) fn multipath(&self, devices: &[PathBuf]) -> Result<Option<PathBuf>, VolumeError> {
        let maps = children(&self.sys.join("block"))?.into_iter();
        let maps: Vec<_> = maps.filter(|(map, _)| map.starts_with("dm-")).collect();
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

    /// Removes block devices that nothing uses, and the multipath devices on top of them first.
    ///
    /// # Errors
    /// A multipath device cannot be removed: then its paths stay.
    pub(super) fn remove(&self, devices: &[PathBuf]) -> Result<(), VolumeError> {
        while let Some(map) = self.multipath(devices)? {
            let mut command = Command::new("multipath");
            command.arg("-f").arg(&map);
            mount::run(command)?;
            if self.multipath(devices)?.as_ref() == Some(&map) {
                let busy = io::Error::from(io::ErrorKind::ResourceBusy);
                return Err(VolumeError::io("remove the multipath device", &map, busy));
            }
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

    /// The links of a directory of `/dev/disk`, with their names.
    pub(super) fn links(&self, kind: &str) -> Result<Vec<(String, PathBuf)>, VolumeError> {
        children(&self.dev.join("disk").join(kind))
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
        let map = kernel.dev.join("dm-0");
        assert_eq!(kernel.multipath(&devices).unwrap(), Some(map));
        // There is no such device for the program, whether it is installed or not.
        kernel.remove(&devices).unwrap_err();
        assert_eq!(fs::read_to_string(&deletion).unwrap(), "");
    }
}
