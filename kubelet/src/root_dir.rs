//! The root directory, which one kubelet uses at a time.

use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

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

#[cfg(test)]
mod tests {
    use super::*;

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
