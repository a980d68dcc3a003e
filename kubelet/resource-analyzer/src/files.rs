//! The logs of a pod and its hosts file. The runtime and the kubelet write them; all functions
//! block.

use std::path::Path;

use kubelet_host::clock;
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, openat, statat},
    io::Errno,
};

use crate::{
    error::MeasureError,
    usage::{FileUsage, PodFiles},
};

/// The unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;
/// The limit on counted files of a directory. Rotation keeps a few of them.
const MAX_FILES: usize = 10_000;

/// Measures the files of a pod with these containers.
///
/// # Errors
/// A directory or the hosts file exists but cannot be read.
pub(crate) fn measure(
    log_dir: &Path,
    etc_hosts: &Path,
    containers: &[String],
) -> Result<PodFiles, MeasureError> {
    let mut files = PodFiles {
        at: clock::now(),
        ..PodFiles::default()
    };
    for container in containers {
        if let Some(usage) = of_directory(&log_dir.join(container))? {
            files.container_logs.insert(container.clone(), usage);
        }
    }
    files.pod_logs = of_directory(log_dir)?.unwrap_or_default();
    let hosts = statat(CWD, etc_hosts, AtFlags::SYMLINK_NOFOLLOW);
    files.etc_hosts = if_present(hosts)
        .map_err(|error| MeasureError::io("inspect", etc_hosts, error))?
        .filter(is_regular)
        .map(|found| {
            let mut usage = FileUsage::default();
            add(&mut usage, &found);
            usage
        });
    Ok(files)
}

/// The regular files of a directory, but not of those below it; `None` if it does not exist.
fn of_directory(dir: &Path) -> Result<Option<FileUsage>, MeasureError> {
    let failed = |error: Errno| MeasureError::io("read", dir, error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = openat(CWD, dir, flags, Mode::empty());
    let Some(opened) = if_present(opened).map_err(failed)? else {
        return Ok(None);
    };
    let mut usage = FileUsage::default();
    let entries = Dir::read_from(&opened).map_err(failed)?;
    for entry in entries.take(MAX_FILES) {
        let entry = entry.map_err(failed)?;
        let found = statat(&opened, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
        // Rotation may have removed it.
        if let Some(found) = if_present(found).map_err(failed)?.filter(is_regular) {
            add(&mut usage, &found);
        }
    }
    Ok(Some(usage))
}

fn is_regular(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
}

fn add(usage: &mut FileUsage, found: &Stat) {
    let blocks = u64::try_from(found.st_blocks).unwrap_or_default();
    usage.bytes = usage.bytes.saturating_add(blocks.saturating_mul(BLOCK));
    usage.inodes += 1;
}

fn if_present<T>(found: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
