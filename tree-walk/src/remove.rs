//! Removes directory trees.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, unlinkat},
    io::Errno,
};

use crate::{MAX_DEPTH, Step, Walk, open};

/// A file or directory that cannot be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove {path:?}: {source}")]
pub struct RemoveError {
    /// The path. The middle of a long path below the tree's root is omitted.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// Removes a directory with all of its contents. A missing directory is not an error; a symbolic
/// link is removed itself. Mounts on the directory or in it are kept.
///
/// # Errors
/// Something cannot be removed or is a mount point. Other parts of the tree may be removed already.
pub fn remove_all(path: &Path) -> Result<(), RemoveError> {
    Removal::new(path, Files::Remove).run()
}

/// As [`remove_all`], but removes only directories.
///
/// # Errors
/// As [`remove_all`], and for any file that is not a directory, which is kept.
pub fn remove_directories(path: &Path) -> Result<(), RemoveError> {
    Removal::new(path, Files::Keep).run()
}

/// The treatment of files other than directories.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Files {
    Remove,
    Keep,
}

struct Removal<'a> {
    path: &'a Path,
    files: Files,
    /// Whether something was removed since the last call of [`has_advanced`](Self::has_advanced).
    advanced: bool,
    max_depth: usize,
}

impl<'a> Removal<'a> {
    const fn new(path: &'a Path, files: Files) -> Self {
        Self {
            path,
            files,
            advanced: false,
            max_depth: MAX_DEPTH,
        }
    }

    fn run(mut self) -> Result<(), RemoveError> {
        let (Some(parent), Some(name)) = (self.path.parent(), self.path.file_name()) else {
            return Err(self.failed(io::ErrorKind::InvalidInput.into()));
        };
        let name = CString::new(name.as_bytes()).map_err(|error| self.failed(error.into()))?;
        let parent = match fs::File::open(Path::new(".").join(parent)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|error| self.failed(error))?,
        };
        let parent = parent.as_fd();
        loop {
            match open::child(parent, &name) {
                Ok(opened) => self.empty(&opened.fd)?,
                Err(Errno::NOENT) => return Ok(()),
                Err(Errno::NOTDIR | Errno::LOOP) if self.path.is_symlink() => {
                    let removed = self.unlink(parent, &name, AtFlags::empty());
                    return removed.map_err(|error| self.failed(error.into()));
                }
                Err(error) => {
                    let refused = Step::Refused(name, error).ensure_passed();
                    return refused.map_err(|error| self.failed(error));
                }
            }
            match self.unlink(parent, &name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) if self.has_advanced() => {}
                removed => return removed.map_err(|error| self.failed(error.into())),
            }
        }
    }

    fn failed(&self, source: io::Error) -> RemoveError {
        RemoveError {
            path: self.path.to_owned(),
            source,
        }
    }

    /// Removes the contents of a directory. Directories below the maximum depth are removed first,
    /// by a walk that starts there.
    fn empty(&mut self, root: &OwnedFd) -> Result<(), RemoveError> {
        let mut deeper: Option<OwnedFd> = None;
        loop {
            let from = match &deeper {
                None => root.try_clone(),
                Some(dir) => dir.try_clone(),
            };
            let walk = from.and_then(|from| Ok(Walk::of(from)?));
            let left = self.pass(walk.map_err(|error| self.failed(error))?)?;
            if left.is_none() && deeper.is_none() {
                return Ok(());
            }
            deeper = left;
        }
    }

    /// Removes everything that a walk passes; returns a directory below the maximum depth, from
    /// which the next walk must start.
    fn pass(&mut self, mut walk: Walk) -> Result<Option<OwnedFd>, RemoveError> {
        walk.max_depth = self.max_depth;
        while let Some(step) = walk.step().map_err(|error| self.failed(error))? {
            match self.remove(&mut walk, &step) {
                Ok(None) => {}
                Ok(deeper) => return Ok(deeper),
                Err(source) => {
                    let path = self.path.join(walk.path(step.name()));
                    return Err(RemoveError { path, source });
                }
            }
        }
        Ok(None)
    }

    fn remove(&mut self, walk: &mut Walk, step: &Step) -> io::Result<Option<OwnedFd>> {
        let directory = walk.directory()?;
        match step {
            Step::File(name) => self.remove_file(directory, name)?,
            Step::Directory(name, _) => {
                match self.unlink(directory, name, AtFlags::REMOVEDIR) {
                    // Something was created in the meantime, or the stream's position was wrong.
                    Err(Errno::NOTEMPTY | Errno::EXIST) if self.has_advanced() => {
                        walk.enter(name.clone())?;
                    }
                    removed => removed?,
                }
            }
            Step::TooDeep(name) => match self.unlink(directory, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    return Ok(Some(open::child(directory, name)?.fd));
                }
                removed => removed?,
            },
            Step::Refused(_, Errno::NOENT) => {}
            Step::Refused(name, Errno::NOTDIR | Errno::LOOP) => {
                self.remove_file(directory, name)?;
            }
            Step::Refused(..) | Step::Unread(_) => step.ensure_passed()?,
        }
        Ok(None)
    }

    fn remove_file(&mut self, directory: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
        if self.files == Files::Keep {
            return Err(io::Error::other("not a directory"));
        }
        match self.unlink(directory, name, AtFlags::empty()) {
            // A directory has replaced the file. Its parent is not empty then, which leads to
            // another pass.
            Err(Errno::ISDIR) => Ok(()),
            removed => Ok(removed?),
        }
    }

    fn unlink(
        &mut self,
        directory: BorrowedFd<'_>,
        name: &CStr,
        flags: AtFlags,
    ) -> rustix::io::Result<()> {
        match unlinkat(directory, name, flags) {
            Err(Errno::NOENT) => Ok(()),
            removed => {
                self.advanced |= removed.is_ok();
                removed
            }
        }
    }

    /// Checks whether something was removed since the last call. Only then may another attempt
    /// succeed in finite time.
    fn has_advanced(&mut self) -> bool {
        std::mem::take(&mut self.advanced)
    }
}

#[cfg(test)]
#[path = "remove_tests.rs"]
mod tests;
