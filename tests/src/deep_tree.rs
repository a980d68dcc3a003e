//! Directories nested deeper than a process has descriptors, than a thread has stack for a
//! call a level, and than a path may be long.

use std::{os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    io,
};
use tempfile::TempDir;

/// How deep a pod is to be able to nest them.
pub const DEPTH: usize = 20_000;

/// A directory in memory, where making and removing many is no matter of the disk. Dropped,
/// it is removed, however deep it has become.
#[derive(Debug)]
pub struct InMemory(TempDir);

impl InMemory {
    /// An empty one.
    pub fn new() -> std::io::Result<Self> {
        let builder = tempfile::Builder::new()
            .prefix("e2e-")
            .tempdir_in("/dev/shm");
        Ok(Self(builder?))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        if let Err(error) = tree_walk::remove_all(self.path()) {
            eprintln!("{error}");
        }
    }
}

/// Nests [`DEPTH`] directories in one; every thousandth has a file too. Returns the last.
pub fn nest(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, dir, flags, Mode::empty())?;
    for level in 0..DEPTH {
        if level % 1000 == 0 {
            let file = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(&at, "file", file, Mode::RUSR)?;
        }
        mkdirat(&at, "nested", Mode::RWXU)?;
        at = openat(&at, "nested", flags, Mode::empty())?;
    }
    Ok(at)
}
