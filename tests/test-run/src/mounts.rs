//! What a test mounts.

use std::{fs, io, path::Path};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

/// A temporary directory. What is mounted in it is unmounted before it is removed.
#[derive(Debug)]
pub struct MountDir(TempDir);

impl MountDir {
    /// A new directory.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new() -> io::Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for MountDir {
    fn drop(&mut self) {
        unmount_below(self.0.path());
    }
}

/// Unmounts everything below a directory, so that it can be removed.
pub fn unmount_below(dir: &Path) {
    // The mount table has no symlinks.
    let Ok(dir) = dir.canonicalize() else {
        return;
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|target| Path::new(target).starts_with(&dir));
    for target in below.collect::<Vec<_>>().into_iter().rev() {
        let _ = unmount(target, UnmountFlags::DETACH);
    }
}
