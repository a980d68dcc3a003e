//! The block devices of pods, which the kubelet keeps open. Once the last process has closed a
//! device, the kernel may give its name and number to another disk, and the pod would get that one.
//!
//! Upstream's kubelet puts a loop device on each of them for this purpose. An open file needs neither
//! a kernel module nor a program, but does not outlive the kubelet: until the next one has synced the
//! pod, only its containers keep the device.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
};

use parking_lot::Mutex;
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, major, minor, open, stat},
    io::Errno,
};

use super::{VolumeError, blocking_on_server, plugin::PodVolume};

/// The open devices of the volumes of pods.
#[derive(Debug, Default)]
pub(super) struct HeldDevices {
    open: Mutex<BTreeMap<PodVolume, File>>,
}

impl HeldDevices {
    /// Opens the device of a volume, and keeps it open. A device that is open already stays so.
    ///
    /// # Errors
    /// It cannot be opened, or is not a block device.
    pub(super) async fn hold(&self, volume: &PodVolume, path: &Path) -> Result<(), VolumeError> {
        let number = self.number(volume);
        let (at, key) = (path.to_owned(), path.to_string_lossy());
        let opened = blocking_on_server(&key, move || {
            let failed = |error: Errno| VolumeError::io("keep open", &at, error.into());
            match stat(&at) {
                Ok(found) if Some(found.st_rdev) == number => Ok(None),
                _ => open_device(&at).map(Some).map_err(failed),
            }
        });
        let Some(opened) = opened.await? else {
            return Ok(());
        };
        let before = self.open.lock().insert(volume.clone(), opened);
        close(path, before).await
    }

    /// The device number of a volume's open device.
    fn number(&self, volume: &PodVolume) -> Option<u64> {
        let open = self.open.lock();
        let found = fstat(open.get(volume)?).ok()?;
        Some(found.st_rdev)
    }

    /// Closes the device of a volume, so that it can be detached.
    ///
    /// # Errors
    /// Closing it panicked.
    pub(super) async fn release(&self, volume: &PodVolume, path: &Path) -> Result<(), VolumeError> {
        let before = self.open.lock().remove(volume);
        close(path, before).await
    }
}

/// Closes a device. The last process to close it waits until its data is written.
async fn close(path: &Path, device: Option<File>) -> Result<(), VolumeError> {
    let Some(device) = device else {
        return Ok(());
    };
    blocking_on_server(&path.to_string_lossy(), move || {
        drop(device);
        Ok(())
    })
    .await
}

/// Opens a block device by its node in `/dev`, if it has one there: the path may be a mount of a
/// driver, which could not unmount it.
fn open_device(path: &Path) -> Result<File, Errno> {
    let found = stat(path)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return Err(Errno::NOTBLK);
    }
    let number = found.st_rdev;
    let own = name(number).and_then(|name| open_number(&Path::new("/dev").join(name), number).ok());
    own.map_or_else(|| open_number(path, number), Ok)
}

/// The kernel's name of a block device.
fn name(number: u64) -> Option<String> {
    let path = format!("/sys/dev/block/{}:{}/uevent", major(number), minor(number));
    let text = fs::read_to_string(path).ok()?;
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("DEVNAME=").map(str::to_owned))
}

fn open_number(path: &Path, number: u64) -> Result<File, Errno> {
    // Opening anything else must not wait for a peer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(path, flags, Mode::empty())?;
    let found = fstat(&device)?;
    let is_device = FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice;
    match is_device && found.st_rdev == number {
        true => Ok(device.into()),
        false => Err(Errno::NOTBLK),
    }
}
