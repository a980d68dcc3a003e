//! File systems and devices as a whole. All functions block, and may hang.

use std::{io, path::Path};

use kubelet_volume::usage::Amounts;
use rustix::{
    fs::{FileType, Mode, OFlags, SeekFrom, StatFs, fstat, open, seek},
    io::Errno,
};

/// The bytes and inodes of a file system.
pub(crate) fn amounts(found: &StatFs) -> [Amounts; 2] {
    let block = u64::try_from(found.f_bsize).unwrap_or_default();
    let bytes = |blocks: u64| blocks.saturating_mul(block);
    let (inodes, free) = (found.f_files, found.f_ffree);
    [
        Amounts {
            total: bytes(found.f_blocks),
            available: bytes(found.f_bavail),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
        },
        Amounts {
            total: inodes,
            available: free,
            used: inodes.saturating_sub(free),
        },
    ]
}

/// The size of a block device in bytes.
///
/// # Errors
/// It cannot be opened, or is not a block device.
pub(crate) fn device_size(path: &Path) -> io::Result<u64> {
    // The path is a link in a pod's directory: opening anything else must not wait for a peer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let device = open(path, flags, Mode::empty())?;
    let found = fstat(&device)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::BlockDevice {
        return Err(Errno::NOTBLK.into());
    }
    Ok(seek(&device, SeekFrom::End(0))?)
}
