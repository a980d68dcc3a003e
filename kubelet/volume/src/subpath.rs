//! Subpaths of volumes (`subPath`), bind-mounted for each container at
//! `volume-subpaths/<volume>/<container>/<index>` in the pod's directory.
//!
//! A container may replace any directory of its volume with a symlink at any time. Therefore a path
//! is first resolved and checked to be inside the volume, and then opened component by component
//! without following symlinks; the opened file is the source of the mount. Everything here blocks.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Component, Path, PathBuf},
};

use kubelet_host::{file_work::FileWork, mount_info};
use rustix::fs::{Mode, OFlags};

use super::{VolumeError, entries, mount};

/// Upstream's name for the directory.
const DIRECTORY: &str = "volume-subpaths";

/// A subpath that a container mounts.
#[derive(Clone, Copy, Debug)]
pub struct SubPath<'a> {
    /// Directory of the pod.
    pub pod_dir: &'a Path,
    /// Name of the persistent volume, or of the volume in the pod's spec if it is inline.
    pub volume: &'a str,
    /// Name of the container.
    pub container: &'a str,
    /// Index of the mount in the container's `volumeMounts`.
    pub index: usize,
    /// Path of the volume on the node.
    pub volume_path: &'a Path,
    /// Path relative to the volume.
    pub sub_path: &'a str,
    /// The work that the subpath is mounted for; nothing is mounted once it is abandoned.
    pub file_work: &'a FileWork,
}

/// Creates the directory of a subpath if nothing is there, with the mode of the volume.
///
/// # Errors
/// The path leads out of the volume, or is not a directory.
pub fn make_dir(volume_path: &Path, sub_path: &str) -> io::Result<()> {
    let base = volume_path.canonicalize()?;
    if base.join(sub_path).exists() {
        // Opening it will check whether it is inside the volume.
        return Ok(());
    }
    let mode = fs::metadata(&base)?.permissions().mode() & 0o7777;
    let components: Vec<_> = Path::new(sub_path).components().collect();
    // The longest existing prefix, and the components after it.
    let mut existing = base.clone();
    let mut missing = components.as_slice();
    for (index, component) in components.iter().enumerate() {
        match existing.join(component).canonicalize() {
            Ok(path) => {
                existing = path;
                missing = &components[index + 1..];
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    let mut dir = open_within(&base, &existing)?;
    for component in missing {
        let Component::Normal(name) = component else {
            return Err(escapes());
        };
        match rustix::fs::mkdirat(&dir, *name, Mode::from_raw_mode(mode & 0o777)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let child = rustix::fs::openat(&dir, *name, flags, Mode::empty())?;
        // The mode at creation was subject to the umask.
        rustix::fs::fchmod(&child, Mode::from_raw_mode(mode))?;
        dir = child;
    }
    Ok(())
}

/// Bind-mounts the subpath unless it is mounted already, and returns the mount point.
///
/// # Errors
/// The path leads out of the volume, cannot be mounted, or is not needed any more.
pub fn bind(part: &SubPath<'_>) -> Result<PathBuf, VolumeError> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |error| VolumeError::io(action, &path, error)
    };
    let wanted = part.volume_path.join(part.sub_path);
    let open = || {
        let base = part.volume_path.canonicalize()?;
        open_within(&base, &wanted.canonicalize()?)
    };
    let opened = open().map_err(failed("open", &wanted))?;
    let found = rustix::fs::fstat(&opened)
        .map_err(io::Error::from)
        .map_err(failed("inspect", &wanted))?;
    // Calls before this line may hang with the volume's server; calls after it do not.
    if part.file_work.is_given_up() {
        let ended = io::Error::other("the pod is terminating");
        return Err(failed("bind", &wanted)(ended));
    }

    let place = part
        .pod_dir
        .join(DIRECTORY)
        .join(part.volume)
        .join(part.container)
        .join(part.index.to_string());
    if mount::is_mounted(&place)? {
        let bound = fs::symlink_metadata(&place).map_err(failed("inspect", &place))?;
        if (bound.dev(), bound.ino()) == (found.st_dev, found.st_ino) {
            return Ok(place);
        }
        mount::clean_up(&place)?;
    }
    if let Some(parent) = place.parent() {
        mount::make_dir(parent, 0o750)?;
    }
    let is_dir = rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir();
    let made = if is_dir {
        mount::make_dir(&place, 0o750)
    } else {
        // A file can be the mount point of anything but a directory.
        let file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&place);
        file.map(drop).map_err(failed("create", &place))
    };
    made?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
    mount::bind(&source, &place)
        .map_err(failed("bind-mount the subPath to", &place))
        .inspect_err(|_| {
            // A leftover mount point must not look like a mount.
            let _ = mount::remove_mount_point(&place);
        })?;
    Ok(place)
}

/// Unmounts the subpaths of one volume of a pod.
///
/// # Errors
/// A subpath cannot be unmounted or removed.
pub fn clean_volume(pod_dir: &Path, volume: &str) -> Result<(), VolumeError> {
    let dir = pod_dir.join(DIRECTORY);
    clean_parts(&dir.join(volume))?;
    if entries::children(&dir)?.is_empty() {
        mount::remove_mount_point(&dir)?;
    }
    Ok(())
}

/// Unmounts the subpaths of all volumes of a pod.
///
/// # Errors
/// As [`clean_volume`].
pub fn clean_pod(pod_dir: &Path) -> Result<(), VolumeError> {
    for (volume, _) in entries::children(&pod_dir.join(DIRECTORY))? {
        clean_volume(pod_dir, &volume)?;
    }
    Ok(())
}

fn clean_parts(volume_dir: &Path) -> Result<(), VolumeError> {
    for (_, container_dir) in entries::children(volume_dir)? {
        // Relies on the mount table: a subpath on a dead server cannot be inspected.
        mount::unmount_all(&container_dir)?;
        for (_, place) in entries::children(&container_dir)? {
            mount::remove_mount_point(&place)?;
        }
        mount::remove_mount_point(&container_dir)?;
    }
    let left = mount_info::within(volume_dir)
        .map_err(|error| VolumeError::io("check for mounts at", volume_dir, error))?;
    if let Some(mount) = left.first() {
        let busy = io::Error::from(io::ErrorKind::ResourceBusy);
        return Err(VolumeError::io("unmount", &mount.mount_point, busy));
    }
    mount::remove_mount_point(volume_dir)
}

/// Opens a resolved path, provided that it is still inside `base` and no component has become a
/// symlink. Neither path may contain symlinks.
fn open_within(base: &Path, path: &Path) -> io::Result<OwnedFd> {
    let relative = path.strip_prefix(base).map_err(|_| escapes())?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut opened = rustix::fs::open(base, flags, Mode::empty())?;
    for component in relative.components() {
        let Component::Normal(name) = component else {
            return Err(escapes());
        };
        opened = rustix::fs::openat(&opened, name, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&opened)?;
        if rustix::fs::FileType::from_raw_mode(found.st_mode).is_symlink() {
            return Err(io::Error::other("it was replaced by a symlink"));
        }
    }
    Ok(opened)
}

fn escapes() -> io::Error {
    io::Error::other("it is not inside the volume")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The directory of a pod with a volume; unmounts everything when dropped.
    struct Pod(tempfile::TempDir, FileWork);

    impl Pod {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("volume")).unwrap();
            fs::create_dir(dir.path().join("secret")).unwrap();
            fs::write(dir.path().join("secret/key"), "of the node").unwrap();
            Self(dir, FileWork::default())
        }

        fn volume(&self) -> PathBuf {
            self.0.path().join("volume")
        }

        fn bind(&self, sub_path: &str) -> Result<PathBuf, VolumeError> {
            bind(&SubPath {
                pod_dir: &self.0.path().join("pod"),
                volume: "v",
                container: "c",
                index: 0,
                volume_path: &self.volume(),
                sub_path,
                file_work: &self.1,
            })
        }
    }

    impl Drop for Pod {
        fn drop(&mut self) {
            let _ = mount::unmount_all(self.0.path());
        }
    }

    #[test]
    fn nothing_is_bound_for_a_pod_that_is_given_up() {
        let pod = Pod::new();
        fs::create_dir(pod.volume().join("part")).unwrap();
        pod.1.give_up();
        let error = pod.bind("part").unwrap_err();
        assert!(
            error.to_string().contains("the pod is terminating"),
            "{error}"
        );
        assert!(!pod.0.path().join("pod").exists());
    }

    #[test]
    fn parts_are_bound_once_and_cleaned_up() {
        let pod = Pod::new();
        make_dir(&pod.volume(), "a/b").unwrap();
        fs::write(pod.volume().join("a/b/f"), "x").unwrap();
        let place = pod.bind("a/b").unwrap();
        assert_eq!(fs::read_to_string(place.join("f")).unwrap(), "x");
        let id = mount_info::at(&place).unwrap().unwrap().id;
        assert_eq!(pod.bind("a/b").unwrap(), place);
        assert_eq!(mount_info::at(&place).unwrap().unwrap().id, id);
        // Another subpath at the same index, which is a file.
        pod.bind("a/b/f").unwrap();
        assert_eq!(fs::read_to_string(&place).unwrap(), "x");
        clean_pod(&pod.0.path().join("pod")).unwrap();
        assert!(!pod.0.path().join("pod").join(DIRECTORY).exists());
        assert!(pod.volume().join("a/b/f").exists());
    }

    #[test]
    fn what_is_made_has_the_volumes_mode() {
        let pod = Pod::new();
        let mode = fs::Permissions::from_mode(0o2775);
        fs::set_permissions(pod.volume(), mode).unwrap();
        make_dir(&pod.volume(), "a/b").unwrap();
        for dir in ["a", "a/b"] {
            let made = fs::metadata(pod.volume().join(dir)).unwrap();
            assert_eq!(made.permissions().mode() & 0o7777, 0o2775, "{dir}");
        }
    }

    #[test]
    fn links_do_not_lead_out_of_the_volume() {
        let pod = Pod::new();
        let volume = pod.volume();
        symlink("../secret", volume.join("up")).unwrap();
        symlink(pod.0.path().join("secret"), volume.join("absolute")).unwrap();
        symlink("..", volume.join("parent")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        for path in [
            "up",
            "up/key",
            "absolute/key",
            "parent",
            "parent/secret/key",
            "magic/etc",
        ] {
            assert!(pod.bind(path).is_err(), "{path}");
        }
        for path in ["up/new", "parent/new", "absolute/a/b", "magic/tmp/x-y-z"] {
            assert!(make_dir(&volume, path).is_err(), "{path}");
        }
        assert!(!pod.0.path().join("new").exists());
        assert_eq!(
            fs::read_dir(pod.0.path().join("secret")).unwrap().count(),
            1
        );
    }

    #[test]
    fn links_inside_the_volume_are_followed() {
        let pod = Pod::new();
        fs::create_dir(pod.volume().join("..one")).unwrap();
        fs::write(pod.volume().join("..one/key"), "x").unwrap();
        symlink("..one", pod.volume().join("..data")).unwrap();
        symlink("..data/key", pod.volume().join("key")).unwrap();
        let place = pod.bind("key").unwrap();
        assert_eq!(fs::read_to_string(place).unwrap(), "x");
    }

    #[test]
    fn a_directory_that_becomes_a_link_is_not_followed() {
        let pod = Pod::new();
        fs::create_dir_all(pod.volume().join("a/b")).unwrap();
        let base = pod.volume().canonicalize().unwrap();
        let resolved = base.join("a/b").canonicalize().unwrap();
        // After resolving, but before opening.
        fs::remove_dir_all(base.join("a")).unwrap();
        symlink(pod.0.path().join("secret"), base.join("a")).unwrap();
        fs::create_dir(pod.0.path().join("secret/b")).unwrap();
        open_within(&base, &resolved).unwrap_err();
    }
}
