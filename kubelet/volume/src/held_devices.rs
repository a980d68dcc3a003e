//! The block devices of pods, which the kubelet keeps open. Once the last process has closed a
//! device, the kernel may give its name and number to another disk, and the pod would get that one.
//!
//! Upstream's kubelet puts a loop device on each of them for this purpose; an open file needs no
//! kernel module, and nothing is left of it when the kubelet ends.

use std::{collections::BTreeMap, fs::File, path::Path};

use parking_lot::Mutex;
use rustix::{
    fs::{FileType, Mode, OFlags, fstat, open},
    io::Errno,
};

use super::{VolumeError, blocking_on_server, plugin::PodVolume};

/// The open devices of the volumes of pods.
#[derive(Debug, Default)]
pub(super) struct HeldDevices {
    open: Mutex<BTreeMap<PodVolume, File>>,
}

impl HeldDevices {
    /// Opens the device of a volume, and keeps it open.
    ///
    /// # Errors
    /// It cannot be opened, or is not a block device.
    pub(super) async fn hold(&self, volume: &PodVolume, path: &Path) -> Result<(), VolumeError> {
        let (at, key) = (path.to_owned(), path.to_string_lossy());
        let open = blocking_on_server(&key, move || {
            let failed = |error: Errno| VolumeError::io("keep open", &at, error.into());
            open_device(&at).map_err(failed)
        });
        let open = open.await?;
        let before = self.open.lock().insert(volume.clone(), open);
        close(path, before).await
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

fn open_device(path: &Path) -> Result<File, Errno> {
    // Opening anything else must not wait for a peer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(path, flags, Mode::empty())?;
    match FileType::from_raw_mode(fstat(&device)?.st_mode) {
        FileType::BlockDevice => Ok(device.into()),
        _ => Err(Errno::NOTBLK),
    }
}
