//! Images mounted as read-only directories on the node, used for image mounts if the engine does
//! not support them: an overlay of the image's layers. An image is mounted once for all its
//! containers, and unmounted with the last of them.

use std::{
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use bollard::models::{DriverData, ImageInspect};
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    mount::{MountFlags, UnmountFlags, mount, unmount},
};

use tokio::sync::{Mutex, RwLock, RwLockReadGuard};

use crate::Error;

/// The directory of the mounts, below the shim's root directory.
const DIRECTORY: &str = "images";
/// The kernel's limit on mount options is one page.
const LONGEST_OPTIONS: usize = 4096;

/// The mounted images.
#[derive(Debug)]
pub struct ImageMounts {
    directory: PathBuf,
    /// Held for writing while unused images are unmounted.
    held: RwLock<()>,
    /// Held while an image is being mounted.
    mounting: Mutex<()>,
}

impl ImageMounts {
    /// Creates the manager of the mounts below `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            directory: root.join(DIRECTORY),
            held: RwLock::default(),
            mounting: Mutex::default(),
        }
    }

    /// Prevents unmounts until the guard is dropped, for a container that is being created and is
    /// not in the model yet.
    pub async fn hold(&self) -> RwLockReadGuard<'_, ()> {
        self.held.read().await
    }

    /// Mounts an image if it is not mounted; returns the directory of `sub_path` in it.
    ///
    /// # Errors
    /// `Unsupported` naming `field` if the engine's storage driver has no layer directories on this
    /// machine; `InvalidArgument` if the image does not have `sub_path`; `File`.
    pub async fn mount(
        &self,
        inspect: ImageInspect,
        sub_path: &str,
        field: &str,
    ) -> Result<PathBuf, Error> {
        let id = inspect.id.clone().unwrap_or_default();
        let _one_at_a_time = self.mounting.lock().await;
        let target = self.directory.join(id.rsplit(':').next().unwrap_or(&id));
        let layers = layers(inspect.graph_driver.as_ref()).ok_or_else(|| {
            let driver = inspect.graph_driver.as_ref().map_or("unknown", |d| &d.name);
            let reason = format!(
                "layers of the engine's storage driver ({driver}) cannot be mounted; an engine of \
                 API 1.48 or newer mounts images itself"
            );
            Error::unsupported(field, reason)
        })?;
        let (sub_path, field) = (sub_path.to_owned(), format!("{field}_sub_path"));
        let work = move || {
            if !is_mounted(&target) {
                let failed = |source| Error::File {
                    action: "mount an image at",
                    path: target.clone(),
                    source,
                };
                std::fs::create_dir_all(&target).map_err(failed)?;
                mount_layers(&layers, &target).map_err(failed)?;
            }
            inside(&target, &sub_path).map_err(|error| {
                Error::invalid(field, format!("{sub_path:?} in the image: {error}"))
            })
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or(Err(Error::Panicked("CreateContainer")))
    }

    /// Unmounts all images whose directories are not `is_used`.
    pub async fn retain(&self, is_used: impl Fn(&Path) -> bool + Send + 'static) {
        let _alone = self.held.write().await;
        let directory = self.directory.clone();
        let work = move || {
            let Ok(entries) = std::fs::read_dir(directory) else {
                return;
            };
            let unused = entries.flatten().map(|entry| entry.path());
            for path in unused.filter(|path| !is_used(path)) {
                let unmounted = if is_mounted(&path) {
                    unmount(&path, UnmountFlags::empty()).map_err(io::Error::from)
                } else {
                    Ok(())
                };
                if let Err(error) = unmounted.and_then(|()| std::fs::remove_dir(&path)) {
                    tracing::warn!(path = %path.display(), %error, "cannot unmount an image");
                }
            }
        };
        // Failed unmounts are retried next time.
        let _ = tokio::task::spawn_blocking(work).await;
    }
}

/// The directories of an image's layers, topmost first, by the engine's shortest paths.
fn layers(driver: Option<&DriverData>) -> Option<Vec<PathBuf>> {
    let driver = driver?;
    match driver.name.as_str() {
        "overlay2" => {
            let upper = driver.data.get("UpperDir")?;
            let lower = driver.data.get("LowerDir");
            let lower = lower.into_iter().flat_map(|lower| lower.split(':'));
            Some(
                std::iter::once(upper.as_str())
                    .chain(lower)
                    .map(short)
                    .collect(),
            )
        }
        "vfs" => Some(vec![driver.data.get("Dir")?.into()]),
        _ => None,
    }
}

/// The short path for `<root>/<layer>/diff`: the symlink that the engine keeps for this purpose.
fn short(diff: &str) -> PathBuf {
    let long = PathBuf::from(diff);
    let layer = long.parent();
    let name = layer.and_then(|layer| std::fs::read_to_string(layer.join("link")).ok());
    match (layer.and_then(Path::parent), name) {
        (Some(root), Some(name)) => root.join("l").join(name.trim()),
        _ => long,
    }
}

fn mount_layers(layers: &[PathBuf], target: &Path) -> io::Result<()> {
    let read_only = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    if let [only] = layers {
        // An overlay needs at least two layers.
        rustix::mount::mount_bind(only, target)?;
        let remounted = rustix::mount::mount_remount(target, MountFlags::BIND | read_only, "");
        return remounted.map_err(|error| {
            // It is writable, and the next request would treat it as mounted.
            let _ = unmount(target, UnmountFlags::empty());
            error.into()
        });
    }
    let layers: Vec<_> = layers.iter().map(|l| l.to_string_lossy()).collect();
    let options = format!("lowerdir={}", layers.join(":"));
    if options.len() >= LONGEST_OPTIONS {
        return Err(io::Error::other(format!(
            "{} layers are more than the kernel can mount at once",
            layers.len()
        )));
    }
    let options = std::ffi::CString::new(options)?;
    mount("overlay", target, "overlay", read_only, options.as_c_str())?;
    Ok(())
}

/// The path of `sub_path` inside the directory `root`, without following symlinks out of it.
fn inside(root: &Path, sub_path: &str) -> io::Result<PathBuf> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = openat(CWD, root, flags | OFlags::DIRECTORY, Mode::empty())?;
    let path = if sub_path.is_empty() { "." } else { sub_path };
    let found = openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Whether `path` is a mount point; the kernel's table has paths without symlinks.
fn is_mounted(path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else {
        return false;
    };
    let mounts = std::fs::read("/proc/self/mounts").unwrap_or_default();
    let mut points = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(1));
    points.any(|point| unescaped(point) == path.as_os_str().as_bytes())
}

/// Decodes the kernel's escapes for blanks: a backslash and three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let escaped = after.get(..3).filter(|_| first == b'\\');
        let code = escaped.and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        plain.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_an_overlay_come_topmost_first_and_short() {
        let dir = tempfile::tempdir().unwrap();
        for (layer, link) in [("top", "AAA"), ("low", "BBB")] {
            std::fs::create_dir_all(dir.path().join(layer).join("diff")).unwrap();
            std::fs::write(dir.path().join(layer).join("link"), link).unwrap();
        }
        let path = |name: &str| dir.path().join(name).display().to_string();
        let data = [
            ("UpperDir".to_owned(), path("top/diff")),
            (
                "LowerDir".to_owned(),
                format!("{}:/elsewhere/diff", path("low/diff")),
            ),
        ];
        let driver = DriverData {
            name: "overlay2".into(),
            data: data.into(),
        };
        let found = layers(Some(&driver)).unwrap();
        assert_eq!(
            found,
            [path("l/AAA"), path("l/BBB"), "/elsewhere/diff".into()].map(PathBuf::from)
        );
        let other = DriverData {
            name: "btrfs".into(),
            ..driver
        };
        assert_eq!(layers(Some(&other)), None);
    }

    #[test]
    fn a_mount_is_found_through_links_and_under_odd_names() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        assert!(is_mounted(Path::new("/proc")) && is_mounted(&link));
        assert!(!is_mounted(dir.path()) && !is_mounted(Path::new("/no/such")));
        for (text, plain) in [
            (r"/a\040b\134c", r"/a b\c"),
            ("/a", "/a"),
            (r"/a\", r"/a\"),
            (r"/\9zz", r"/\9zz"),
        ] {
            assert_eq!(unescaped(text.as_bytes()), plain.as_bytes());
        }
    }

    #[test]
    fn a_sub_path_does_not_lead_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::os::unix::fs::symlink("/etc", root.join("out")).unwrap();
        std::os::unix::fs::symlink("../../..", root.join("up")).unwrap();
        assert_eq!(inside(&root, "").unwrap(), root);
        assert_eq!(inside(&root, "out").unwrap(), root.join("etc"));
        assert_eq!(inside(&root, "up").unwrap(), root);
        assert!(inside(&root, "missing").is_err());
    }
}
