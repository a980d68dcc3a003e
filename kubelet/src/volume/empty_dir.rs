//! `emptyDir`: a directory that lives as long as its pod, on the node's disk or,
//! with `medium: Memory`, in a tmpfs.

use std::{
    ffi::CString,
    fs, io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use rustix::mount::{MountFlags, UnmountFlags};

use super::VolumeError;
use crate::runtime::resources;

/// Upstream's name of the directory, so that a node can change between the two.
const PLUGIN: &str = "volumes/kubernetes.io~empty-dir";

pub(super) fn set_up(
    name: &str,
    source: &EmptyDirVolumeSource,
    pod_dir: &Path,
    fs_group: Option<i64>,
) -> Result<PathBuf, VolumeError> {
    let path = pod_dir.join(PLUGIN).join(name);
    let failed = |action| {
        let path = path.clone();
        move |error| VolumeError::io(action, &path, error)
    };
    let is_new = !path.exists();
    fs::create_dir_all(&path).map_err(failed("create"))?;
    let in_memory = source.medium.as_deref() == Some("Memory");
    let is_mounted = is_mount_point(&path).map_err(failed("look at"))?;
    if in_memory && !is_mounted {
        mount_tmpfs(&path, source).map_err(failed("mount a tmpfs on"))?;
    } else if !is_new {
        return Ok(path);
    }
    let mut mode = 0o777;
    if let Some(group) = fs_group.and_then(|group| u32::try_from(group).ok()) {
        std::os::unix::fs::chown(&path, None, Some(group)).map_err(failed("give to fsGroup"))?;
        mode |= 0o2000;
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(mode))
        .map_err(failed("set the mode of"))?;
    Ok(path)
}

fn mount_tmpfs(path: &Path, source: &EmptyDirVolumeSource) -> io::Result<()> {
    let size = source.size_limit.as_ref().and_then(resources::units);
    let options = match size.filter(|size| *size > 0) {
        Some(size) => CString::new(format!("size={size}"))?,
        None => CString::default(),
    };
    rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), &*options)?;
    Ok(())
}

fn is_mount_point(path: &Path) -> io::Result<bool> {
    let Some(parent) = path.parent() else {
        return Ok(true);
    };
    Ok(fs::metadata(path)?.dev() != fs::metadata(parent)?.dev())
}

pub(super) fn tear_down(pod_dir: &Path) -> Result<(), VolumeError> {
    let root = pod_dir.join(PLUGIN);
    let entries = match fs::read_dir(&root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(VolumeError::io("list", &root, error)),
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let failed = |action| {
            let path = &path;
            move |error: io::Error| VolumeError::io(action, path, error)
        };
        if is_mount_point(&path).map_err(failed("look at"))? {
            rustix::mount::unmount(&path, UnmountFlags::NOFOLLOW)
                .map_err(io::Error::from)
                .map_err(failed("unmount"))?;
        }
        fs::remove_dir_all(&path).map_err(failed("remove"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_stay_until_the_pod_is_torn_down() {
        let dir = tempfile::tempdir().unwrap();
        let source = EmptyDirVolumeSource::default();
        let path = set_up("v", &source, dir.path(), None).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o777);
        fs::write(path.join("f"), "x").unwrap();
        assert_eq!(set_up("v", &source, dir.path(), None).unwrap(), path);
        assert!(path.join("f").exists());
        tear_down(dir.path()).unwrap();
        assert!(!path.exists());
        tear_down(dir.path()).unwrap();
    }
}
