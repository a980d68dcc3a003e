//! The root directory, which one kubelet uses at a time.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use kubelet_host::mount_info::{self, MountTable};
use rustix::{
    fs::{FlockOperation, flock},
    mount::{MountPropagationFlags, mount_bind, mount_change},
};

/// Directories that driver and plugin pods mount and expect to exist.
const DIRS: [&str; 4] = ["device-plugins", "plugins", "plugins_registry", "pods"];

/// Locks a root directory while it lives. The kernel releases the lock however the kubelet dies.
#[derive(Debug)]
pub struct RootDirLock {
    _file: File,
}

/// Why a root directory is unusable.
#[derive(Debug, thiserror::Error)]
pub enum RootDirError {
    /// It cannot be created or written to.
    #[error("cannot use {} (below --root-dir): {source}", path.display())]
    Io {
        /// The directory, or the file in it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another kubelet holds the lock.
    #[error(
        "another kubelet (process {holder}) uses {}; stop it, or start this one with another \
         --root-dir",
        path.display()
    )]
    Taken {
        /// The root directory.
        path: PathBuf,
        /// The other process's ID, as it wrote it to the lock file.
        holder: String,
    },
}

impl RootDirLock {
    /// Creates the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// The directory is unusable, or another kubelet uses it.
    pub fn acquire(root_dir: &Path) -> Result<Self, RootDirError> {
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source| RootDirError::Io { path, source }
        };
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o750);
        make.create(root_dir).map_err(fault(root_dir))?;
        for dir in DIRS {
            let dir = root_dir.join(dir);
            make.create(&dir).map_err(fault(&dir))?;
        }
        let path = root_dir.join("kubelet.lock");
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(fault(&path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                // Best effort: only for the error message.
                let _ = file.read_to_string(&mut holder);
                return Err(RootDirError::Taken {
                    path: root_dir.to_owned(),
                    holder: holder.trim().to_owned(),
                });
            }
            Err(error) => return Err(fault(&path)(error.into())),
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(fault(&path))?;
        Ok(Self { _file: file })
    }
}

/// Shares what is mounted below the root directory with the containers that ask for it
/// (`mountPropagation`), such as those of CSI drivers. With systemd, all mounts are shared already.
///
/// # Errors
/// The kernel refuses it, or pods of an earlier kubelet have mounts there, which a new mount would
/// cover.
pub fn share(root_dir: &Path) -> io::Result<()> {
    let root = root_dir.canonicalize()?;
    let holding = MountTable::of(Path::new("/")).holding(&root)?;
    if holding.as_ref().is_some_and(|mount| mount.shared) {
        return Ok(());
    }
    if holding.is_none_or(|mount| mount.mount_point != root) {
        if let Some(mount) = mount_info::within(&root)?.first() {
            let used = format!("{} is mounted", mount.mount_point.display());
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, used));
        }
        mount_bind(&root, &root)?;
    }
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    Ok(mount_change(&root, flags)?)
}

#[cfg(test)]
mod tests {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;

    #[test]
    fn mounts_below_a_root_directory_are_shared() {
        let dir = tempfile::tempdir().unwrap();
        let disk = dir.path().canonicalize().unwrap();
        mount("none", &disk, "tmpfs", MountFlags::empty(), None).unwrap();
        mount_change(&disk, MountPropagationFlags::PRIVATE).unwrap();
        let root = disk.join("kubelet");
        let volume = root.join("pods");
        std::fs::create_dir_all(&volume).unwrap();
        let shared = || {
            let mounts = mount_info::within(&disk).unwrap().into_iter();
            let mounts = mounts.map(|mount| (mount.mount_point, mount.shared));
            mounts.collect::<Vec<_>>()
        };
        let unmount = |path: &Path| unmount(path, UnmountFlags::DETACH).unwrap();

        // What is mounted already stays reachable.
        mount("none", &volume, "tmpfs", MountFlags::empty(), None).unwrap();
        mount_change(&volume, MountPropagationFlags::PRIVATE).unwrap();
        let busy = share(&root).unwrap_err();
        let kept = shared();
        unmount(&volume);
        for _ in 0..2 {
            share(&root).unwrap();
        }
        let made = shared();
        unmount(&root);
        // The root directory has a file system of its own.
        share(&disk).unwrap();
        let own = shared();
        unmount(&disk);
        assert!(busy.to_string().contains("pods is mounted"), "{busy}");
        assert_eq!(kept, [(volume, false), (disk.clone(), false)]);
        assert_eq!(made, [(root, true), (disk.clone(), false)]);
        assert_eq!(own, [(disk, true)]);
    }

    #[test]
    fn one_kubelet_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("var/lib/kubelet");
        let first = RootDirLock::acquire(&root).unwrap();
        assert!(root.join("plugins_registry").is_dir());
        let error = RootDirLock::acquire(&root).unwrap_err().to_string();
        assert!(
            error.contains(&format!("process {}", std::process::id())),
            "{error}"
        );
        drop(first);
        RootDirLock::acquire(&root).unwrap();
    }
}
