//! Mounts, unmounts, and the removal of mount points. Everything here blocks.

use std::{
    ffi::CString,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use kubelet_host::mount_info;
use rustix::mount::{FsOpenFlags, MountFlags, UnmountFlags, fsconfig_set_flag, fsopen};

use super::VolumeError;

/// Whether what is in a volume in memory may be swapped to disk: if the kernel, before Linux 6.4, or
/// the privileges of this process do not allow a tmpfs without swap.
pub fn tmpfs_may_be_swapped() -> bool {
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC);
    let set = context.and_then(|context| fsconfig_set_flag(context, "noswap"));
    set.is_err()
}

/// Mounts a tmpfs of at most `size` bytes (the kernel's default if `None`), without swap if the
/// kernel supports that.
pub(super) fn tmpfs(path: &Path, size: Option<i64>) -> Result<(), VolumeError> {
    let size = size.map(|size| format!("size={size}"));
    let options = |more: Option<&str>| {
        let all: Vec<&str> = size.as_deref().into_iter().chain(more).collect();
        all.join(",")
    };
    let mounted = file_system("tmpfs", "tmpfs", path, &options(Some("noswap")));
    // Older kernels refuse the option, as do mounts in a user namespace.
    mounted
        .or_else(|_| file_system("tmpfs", "tmpfs", path, &options(None)))
        .map_err(|error| VolumeError::io("mount a tmpfs on", path, error))
}

/// Mounts a file system of the given type.
pub(super) fn file_system(
    source: &str,
    fs_type: &str,
    path: &Path,
    options: &str,
) -> io::Result<()> {
    let options = CString::new(options)?;
    rustix::mount::mount(source, path, fs_type, MountFlags::empty(), &*options)?;
    Ok(())
}

/// Bind-mounts `source` at `target`, without the mounts below it.
pub(super) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    rustix::mount::mount_bind(source, target)?;
    Ok(())
}

/// Makes a bind mount read-only, with its other flags as they are.
pub(super) fn make_read_only(path: &Path) -> io::Result<()> {
    let mount = mount_info::at(path)?.ok_or(io::ErrorKind::NotFound)?;
    let has = |option: &str| mount.options.split(',').any(|set| set == option);
    if has("ro") {
        return Ok(());
    }
    let mut flags = MountFlags::BIND | MountFlags::RDONLY;
    // A remount drops the flags that it does not name.
    for (option, flag) in [
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
        ("relatime", MountFlags::RELATIME),
    ] {
        if has(option) {
            flags |= flag;
        }
    }
    rustix::mount::mount_remount(path, flags, "")?;
    Ok(())
}

/// Whether something is mounted at the path.
pub(super) fn is_mounted(path: &Path) -> Result<bool, VolumeError> {
    match mount_info::at(path) {
        Ok(mount) => Ok(mount.is_some()),
        Err(error) => Err(VolumeError::io("check for mounts at", path, error)),
    }
}

/// Checks that the mount at a path is not visible elsewhere. A staged volume is mounted where it is
/// published, and unstaging it then would harm a pod.
pub(super) fn ensure_unused(path: &Path) -> Result<(), VolumeError> {
    match used_at(path)? {
        Some(place) => {
            let why = format!("it is still mounted at {}", place.display());
            Err(VolumeError::io("unstage", path, io::Error::other(why)))
        }
        None => Ok(()),
    }
}

/// Another place where the mount at a path is visible.
pub(super) fn used_at(path: &Path) -> Result<Option<PathBuf>, VolumeError> {
    let others = mount_info::elsewhere(path)
        .map_err(|error| VolumeError::io("check for mounts at", path, error))?;
    Ok(others.into_iter().next().map(|other| other.mount_point))
}

/// Unmounts everything at a path and below it.
pub(super) fn unmount_all(path: &Path) -> Result<(), VolumeError> {
    let mounts = mount_info::within(path)
        .map_err(|error| VolumeError::io("check for mounts at", path, error))?;
    for mount in mounts {
        unmount(&mount.mount_point, UnmountFlags::empty())?;
    }
    Ok(())
}

/// Unmounts the topmost mount at a path. A missing mount is no error.
pub(super) fn unmount(path: &Path, flags: UnmountFlags) -> Result<(), VolumeError> {
    match rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(VolumeError::io("unmount", path, error.into())),
    }
}

/// Unmounts a path and removes its mount point: an empty directory or a file, never contents.
pub(super) fn clean_up(path: &Path) -> Result<(), VolumeError> {
    unmount_all(path)?;
    remove_mount_point(path)
}

/// Removes an empty directory or a file. A missing one is no error.
pub(super) fn remove_mount_point(path: &Path) -> Result<(), VolumeError> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    missing_is_fine(removed).map_err(|error| VolumeError::io("remove", path, error))
}

/// Removes a directory with its contents. Everything in it is unmounted first, so that nothing is
/// deleted through a mount.
pub(super) fn remove_contents(path: &Path) -> Result<(), VolumeError> {
    unmount_all(path)?;
    let mounts = mount_info::within(path)
        .map_err(|error| VolumeError::io("check for mounts at", path, error))?;
    if let Some(mount) = mounts.first() {
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        return Err(VolumeError::io("unmount", &mount.mount_point, busy));
    }
    Ok(tree_walk::remove_all(path)?)
}

fn missing_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Creates a directory and its parents with the given mode.
pub(super) fn make_dir(path: &Path, mode: u32) -> Result<(), VolumeError> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|error| VolumeError::io("create the directory", path, error))
}

/// Mounts with the `mount` program, which knows the helpers of network file systems and detects
/// file system types. The helpers get the source where an option may be, so it must not look like
/// one.
pub(super) fn mount_program(
    source: &str,
    target: &Path,
    fs_type: &str,
    options: &[String],
) -> Result<(), VolumeError> {
    let mut command = Command::new("mount");
    if !fs_type.is_empty() {
        command.args(["-t", fs_type]);
    }
    if !options.is_empty() {
        command.args(["-o", &options.join(",")]);
    }
    command.arg("--").arg(source).arg(target);
    run(command).map(drop)
}

/// Runs a program until it ends, and returns its output if it succeeds.
pub(super) fn run(mut command: Command) -> Result<String, VolumeError> {
    let failed = |command: &Command, output: String| VolumeError::Program {
        program: format!("{command:?}").replace('"', ""),
        output,
    };
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(&command, error.to_string()))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let wrote = format!("{} {}", text(&output.stderr), text(&output.stdout));
    Err(failed(
        &command,
        format!("{}: {}", output.status, wrote.trim()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tmpfs_is_mounted_without_swap_exactly_if_that_is_possible() {
        let dir = tempfile::tempdir().unwrap();
        tmpfs(dir.path(), Some(1 << 20)).unwrap();
        let mounts = fs::read_to_string("/proc/self/mountinfo");
        unmount_all(dir.path()).unwrap();
        let mounts = mounts.unwrap();
        let path = dir.path().to_str().unwrap();
        let mount = mounts.lines().find(|line| line.contains(path)).unwrap();
        assert!(mount.contains("size=1024k"), "{mount}");
        assert_eq!(mount.contains("noswap"), !tmpfs_may_be_swapped(), "{mount}");
    }
}
