//! Trees of directories that are nested too deep for an open file descriptor or a recursive call
//! per level, and for the maximum length of a path.

#![forbid(unsafe_code)]

use std::{os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{CWD, Mode, OFlags, mkdirat, openat},
    io,
};
use tempfile::TempDir;

/// The nesting depth that pods may create.
pub const DEPTH: usize = 20_000;

/// A directory in memory, so that its creation and removal do not depend on the disk. It is removed
/// on drop, however deep it is.
#[derive(Debug)]
pub struct InMemory(TempDir);

impl InMemory {
    /// Creates an empty directory.
    pub fn new() -> std::io::Result<Self> {
        let builder = tempfile::Builder::new()
            .prefix("e2e-")
            .tempdir_in("/dev/shm");
        Ok(Self(builder?))
    }

    /// The path of the directory.
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

/// Nests [`DEPTH`] directories below `dir`; every thousandth has a file too. Returns the innermost.
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
