//! Walks through directory trees that containers created and may still be changing.
//!
//! Such a tree may be deeper than a process' descriptors or stack allow, and its paths may exceed
//! the limit on a path's length. So a [`Walk`] moves between directories by descriptors. It keeps a
//! few of them open and returns to the others by `..`, or from the root if a directory was moved in
//! the meantime; inodes identify the directories. It follows no symbolic links and enters no other
//! mounts. A [`GuardedPath`] is a name in a directory, for paths whose directories may have been
//! replaced by links.

#![forbid(unsafe_code)]

mod disk_walk;
mod guarded_path;
mod open;
mod remove;

use std::{
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

pub use disk_walk::DiskWalk;
pub use guarded_path::GuardedPath;
use open::{Id, Opened};
pub use remove::{RemoveError, remove_all, remove_directories};
use rustix::{
    fs::{AtFlags, Dir, DirEntry, FileType, statat},
    io::Errno,
};

/// The limit on open directories above the current one. Few trees are deeper.
const OPEN: usize = 8;
/// The maximum depth of a walk. Every directory above the current one takes about a hundred bytes
/// of memory.
pub const MAX_DEPTH: usize = 1 << 16;
/// The number of names at each end of a long path that [`Walk::path`] returns.
const TOLD: usize = 8;

/// A step of a [`Walk`]. The name is relative to [`Walk::directory`].
#[derive(Debug)]
pub enum Step {
    /// A file of any type other than a directory.
    File(CString),
    /// A directory, after all of its contents.
    Directory(CString, Passed),
    /// A directory that cannot be entered: [`Errno::XDEV`] if it is a mount point,
    /// [`Errno::NOTDIR`] or [`Errno::LOOP`] if it was replaced by something else.
    Refused(CString, Errno),
    /// A directory below the maximum depth.
    TooDeep(CString),
    /// The rest of [`Walk::directory`] cannot be read.
    Unread(Errno),
}

impl Step {
    /// Fails if this step skips something, for walks that must be complete.
    ///
    /// # Errors
    /// The reason why this step skips something.
    pub fn ensure_passed(&self) -> io::Result<()> {
        match self {
            Self::File(_) | Self::Directory(..) => Ok(()),
            Self::Refused(_, Errno::XDEV) => Err(io::Error::other("something is mounted there")),
            Self::Refused(_, error) | Self::Unread(error) => Err((*error).into()),
            Self::TooDeep(_) => Err(io::Error::other(format!(
                "directories are nested more than {MAX_DEPTH} deep"
            ))),
        }
    }

    /// The name of the file or directory.
    pub fn name(&self) -> Option<&CStr> {
        match self {
            Self::File(name)
            | Self::Directory(name, _)
            | Self::Refused(name, _)
            | Self::TooDeep(name) => Some(name),
            Self::Unread(_) => None,
        }
    }
}

/// A directory whose contents the walk has passed.
#[derive(Debug)]
pub struct Passed(Dir);

impl Passed {
    /// The directory itself, even if its name refers to something else by now.
    ///
    /// # Errors
    /// None on Linux.
    pub fn directory(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.0.fd()?)
    }
}

/// A walk through everything below a directory. It may be stopped after any step.
#[derive(Debug)]
pub struct Walk {
    root: OwnedFd,
    /// The directories from the root to the parent of the current one, each with its stream if it
    /// is open.
    above: Vec<(Level, Option<Dir>)>,
    current: Level,
    stream: Dir,
    max_depth: usize,
}

/// A directory on the path from the root of a walk to its position.
#[derive(Debug)]
struct Level {
    /// The name in the parent directory; empty for the root.
    name: CString,
    id: Id,
    /// The position at which reading continues.
    position: i64,
}

impl Walk {
    /// Starts a walk below the directory `path`. The last component must not be a symbolic link.
    ///
    /// # Errors
    /// The path cannot be opened, or is not a directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::of(open::root(path)?)?)
    }

    /// Starts a walk below an open directory.
    ///
    /// # Errors
    /// The directory cannot be opened again, or is not a directory.
    pub fn of(root: OwnedFd) -> rustix::io::Result<Self> {
        let Opened { fd, id } = open::again(root.as_fd())?;
        Ok(Self {
            root,
            above: Vec::new(),
            current: Level {
                name: CString::default(),
                id,
                position: 0,
            },
            stream: Dir::new(fd)?,
            max_depth: MAX_DEPTH,
        })
    }

    /// The directory that contains the name of the last step; the root at the end of the walk.
    ///
    /// # Errors
    /// None on Linux.
    pub fn directory(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.stream.fd()?)
    }

    /// Returns the next step; `None` at the end of the walk. Files that are created or moved during
    /// the walk may or may not be included.
    ///
    /// # Errors
    /// The root cannot be opened again, when that is the only way back. The walk ends then.
    pub fn step(&mut self) -> io::Result<Option<Step>> {
        loop {
            match self.stream.read() {
                Some(Ok(entry)) => {
                    self.current.position = entry.offset();
                    if let Some(step) = self.pass(entry)? {
                        return Ok(Some(step));
                    }
                }
                Some(Err(error)) => return Ok(Some(Step::Unread(error))),
                None => {
                    let Some((parent, stream)) = self.above.pop() else {
                        return Ok(None);
                    };
                    if let Some(step) = self.leave(parent, stream)? {
                        return Ok(Some(step));
                    }
                }
            }
        }
    }

    /// Enters a directory in the current one, even if the walk has passed it already.
    fn enter(&mut self, name: CString) -> rustix::io::Result<()> {
        let Opened { fd, id } = open::child(self.stream.fd()?, &name)?;
        let level = Level {
            name,
            id,
            position: 0,
        };
        let above = std::mem::replace(&mut self.current, level);
        let stream = std::mem::replace(&mut self.stream, Dir::new(fd)?);
        self.above.push((above, Some(stream)));
        if let Some(far) = self.above.len().checked_sub(OPEN + 1) {
            self.above[far].1 = None;
        }
        Ok(())
    }

    /// Returns the path from the root to a name in the current directory, or to that directory
    /// itself. The middle of a long path is omitted.
    pub fn path(&self, name: Option<&CStr>) -> PathBuf {
        let above = self.above.iter().map(|(level, _)| level);
        let levels = above.chain([&self.current]).skip(1);
        let names = levels.map(|level| level.name.as_c_str()).chain(name);
        let names: Vec<&CStr> = names.collect();
        let text = |name: &&CStr| OsStr::from_bytes(name.to_bytes()).to_owned();
        match names.len().checked_sub(TOLD) {
            Some(end) if end > TOLD => {
                let (first, last) = (&names[..TOLD], &names[end..]);
                let first = first.iter().map(text);
                first
                    .chain(["...".into()])
                    .chain(last.iter().map(text))
                    .collect()
            }
            _ => names.iter().map(text).collect(),
        }
    }

    /// Returns the step for an entry of the current directory, or enters it.
    fn pass(&mut self, entry: DirEntry) -> io::Result<Option<Step>> {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(None);
        }
        let name = name.to_owned();
        let kind = match entry.file_type() {
            // Not every file system reports the type.
            FileType::Unknown => {
                match statat(self.stream.fd()?, &name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(found) => FileType::from_raw_mode(found.st_mode),
                    Err(error) => return Ok(Some(Step::Refused(name, error))),
                }
            }
            known => known,
        };
        if kind != FileType::Directory {
            return Ok(Some(Step::File(name)));
        }
        if self.above.len() >= self.max_depth {
            return Ok(Some(Step::TooDeep(name)));
        }
        let entered = self.enter(name.clone());
        Ok(entered.err().map(|error| Step::Refused(name, error)))
    }

    /// Returns to the parent of the current directory.
    fn leave(&mut self, parent: Level, stream: Option<Dir>) -> io::Result<Option<Step>> {
        let stream = match stream {
            Some(stream) => stream,
            None => match open::parent(self.stream.fd()?) {
                Ok(opened) if opened.id == parent.id => parent.read_on(opened)?,
                _ => {
                    self.find_again(parent)?;
                    return Ok(None);
                }
            },
        };
        let passed = Passed(std::mem::replace(&mut self.stream, stream));
        let level = std::mem::replace(&mut self.current, parent);
        Ok(Some(Step::Directory(level.name, passed)))
    }

    /// Continues in the deepest directory that can still be reached on the path from the root to
    /// `moved`.
    fn find_again(&mut self, moved: Level) -> io::Result<()> {
        let mut levels = std::mem::take(&mut self.above);
        levels.push((moved, None));
        let mut found = open::again(self.root.as_fd())?;
        let mut depth = 0;
        while let Some((next, _)) = levels.get(depth + 1) {
            match open::child(found.fd.as_fd(), &next.name) {
                Ok(child) if child.id == next.id => found = child,
                _ => break,
            }
            depth += 1;
        }
        levels.truncate(depth + 1);
        if let Some((level, _)) = levels.pop() {
            self.stream = level.read_on(found)?;
            self.current = level;
            self.above = levels;
        }
        Ok(())
    }
}

impl Level {
    /// Opens a stream at the position at which reading continues.
    fn read_on(&self, opened: Opened) -> io::Result<Dir> {
        let mut stream = Dir::new(opened.fd)?;
        stream.seek(self.position)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests;
