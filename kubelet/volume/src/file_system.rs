//! File systems on disks: detection, creation, checks, mounting and growth. Everything here blocks.

use std::{fs::File, path::Path, process::Command};

use kubelet_host::mount_info;
use tracing::{info, warn};

use super::{VolumeError, mount};

/// Exit code of `blkid` if it found nothing.
const NOTHING_FOUND: i32 = 2;
/// Exit code of `fsck` if it left errors uncorrected.
const UNCORRECTED: i32 = 4;

/// Type of the file systems that are made if no type is wanted.
const DEFAULT_TYPE: &str = "ext4";
/// What upstream calls the contents of a disk with a partition table.
const PARTITIONS: &str = "unknown data, probably partitions";

/// Mounts a disk. An empty disk is formatted with `fs_type` first, unless the mount is read-only. A
/// disk with another file system is never overwritten, but mounted if it can be as `fs_type`, as an
/// ext3 can be as an ext4. Any file system is mounted if `fs_type` is empty.
pub(super) fn format_and_mount(
    disk: &Path,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), VolumeError> {
    let read_only = options.iter().any(|option| option == "ro");
    let mut options = options.to_vec();
    options.push("defaults".to_owned());
    let found = found(disk)?;
    let other = found
        .clone()
        .filter(|it| !fs_type.is_empty() && it != fs_type);
    match found {
        None if read_only => {
            let why = "cannot mount unformatted disk as we are manipulating it in read-only mode";
            return Err(VolumeError::io("mount", disk, std::io::Error::other(why)));
        }
        None if fs_type.is_empty() => make(disk, DEFAULT_TYPE)?,
        None => make(disk, fs_type)?,
        Some(what) if what == PARTITIONS && !fs_type.is_empty() => {
            return Err(mismatch(disk, fs_type, PARTITIONS, ""));
        }
        Some(_) if !read_only => check(disk)?,
        Some(_) => {}
    }
    let mounted = mount::mount_program(&disk.to_string_lossy(), target, fs_type, &options);
    match (mounted, other) {
        (Ok(()), Some(other)) => {
            let disk = disk.display();
            warn!(%disk, fs_type, found = other, "mounted a disk with another file system");
            Ok(())
        }
        (Err(error), Some(other)) => Err(mismatch(disk, fs_type, &other, &format!(": {error}"))),
        (mounted, None) => mounted,
    }
}

fn mismatch(disk: &Path, fs_type: &str, found: &str, why: &str) -> VolumeError {
    let why =
        format!("failed to mount the volume as {fs_type:?}, it already contains {found}{why}");
    VolumeError::io("mount", disk, std::io::Error::other(why))
}

/// The contents of a disk: the type of its file system, or a description of something else; `None`
/// if it is empty.
fn found(disk: &Path) -> Result<Option<String>, VolumeError> {
    // `blkid` says the same of an empty disk and of one that it cannot open.
    File::open(disk).map_err(|error| VolumeError::io("open", disk, error))?;
    let mut command = Command::new("blkid");
    command.args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--"]);
    command.arg(disk);
    let output = command.output().map_err(|error| VolumeError::Program {
        program: "blkid".to_owned(),
        output: error.to_string(),
    })?;
    if output.status.code() == Some(NOTHING_FOUND) {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(VolumeError::Program {
            program: format!("blkid {}", disk.display()),
            output: format!("{}: {}", output.status, text.trim()),
        });
    }
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    if value("PTTYPE=").is_some_and(|table| !table.is_empty()) {
        return Ok(Some(PARTITIONS.to_owned()));
    }
    Ok(value("TYPE=")
        .filter(|name| !name.is_empty())
        .map(str::to_owned))
}

fn make(disk: &Path, fs_type: &str) -> Result<(), VolumeError> {
    info!(disk = %disk.display(), fs_type, "formatting an empty disk");
    let mut command = Command::new(format!("mkfs.{fs_type}"));
    if matches!(fs_type, "ext3" | "ext4") {
        // Accept a whole disk (`-F`), and reserve no blocks for root (`-m0`).
        command.args(["-F", "-m0"]);
    }
    // `mkfs.ntfs` ignores operands after `--`.
    if fs_type != "ntfs" {
        command.arg("--");
    }
    command.arg(disk);
    mount::run(command).map(drop)
}

fn check(disk: &Path) -> Result<(), VolumeError> {
    let mut command = Command::new("fsck");
    // No `--`: `fsck` passes what follows it to the checker of the file system type, and checks no
    // disk.
    command.arg("-a").arg(disk);
    // `fsck` is not installed on every node.
    let Ok(output) = command.output() else {
        return Ok(());
    };
    if output.status.code() == Some(UNCORRECTED) {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        return Err(VolumeError::Program {
            program: format!("fsck -a {}", disk.display()),
            output: format!("'fsck' found errors on device but could not correct them: {text}"),
        });
    }
    Ok(())
}

/// Grows a mounted file system to the size of its disk.
pub(super) fn grow(disk: &Path, target: &Path) -> Result<(), VolumeError> {
    let mounted = mount_info::at(target)
        .map_err(|error| VolumeError::io("check for mounts at", target, error))?;
    let fs_type = mounted.map(|mount| mount.fs_type).unwrap_or_default();
    let mut command = match fs_type.as_str() {
        "ext2" | "ext3" | "ext4" => {
            let mut command = Command::new("resize2fs");
            command.arg("--").arg(disk);
            command
        }
        "xfs" => {
            let mut command = Command::new("xfs_growfs");
            command.args(["-d", "--"]);
            command
        }
        "btrfs" => {
            let mut command = Command::new("btrfs");
            command.args(["filesystem", "resize", "--", "max"]);
            command
        }
        other => {
            let why = format!("resize of format {other} is not supported");
            return Err(VolumeError::io("grow", disk, std::io::Error::other(why)));
        }
    };
    if !fs_type.starts_with("ext") {
        command.arg(target);
    }
    mount::run(command).map(drop)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_related_file_system_is_mounted_and_another_one_named() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, target) = (dir.path().join("disk"), dir.path().join("target"));
        fs::create_dir(&target).unwrap();
        File::create(&disk).unwrap().set_len(4 << 20).unwrap();
        let mut mkfs = Command::new("mkfs.ext2");
        mount::run({
            mkfs.args(["-q", "-F"]).arg(&disk);
            mkfs
        })
        .unwrap();
        let options = ["loop".to_owned()];
        format_and_mount(&disk, &target, "ext4", &options).unwrap();
        let mounted = mount_info::at(&target);
        mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
        assert_eq!(mounted.unwrap().unwrap().fs_type, "ext4");
        let error = format_and_mount(&disk, &target, "vfat", &options).unwrap_err();
        let says = "failed to mount the volume as \"vfat\", it already contains ext2: ";
        assert!(error.to_string().contains(says), "{error}");
    }
}
