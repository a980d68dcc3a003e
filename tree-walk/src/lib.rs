//! Walks through trees of directories that containers have made, and may be changing still.
//!
//! Such a tree may be deeper than a process has descriptors or stack for, and than any path
//! can say. So a [`Walk`] goes from directory to directory by descriptors. It keeps a few
//! of them open, and finds the way back to the others by `..`, or from the root where a
//! directory was moved meanwhile: each is known by its inode. It follows no link and enters
//! no other mount. A [`Place`] is a name below directories that others may have replaced by
//! links.

#![forbid(unsafe_code)]

mod open;
mod place;
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

use open::{Id, Opened};
pub use place::Place;
pub use remove::{RemoveError, remove_all, remove_directories};
use rustix::{
    fs::{AtFlags, Dir, DirEntry, FileType, statat},
    io::Errno,
};

/// Directories above the current one that stay open at most: few trees have more.
const OPEN: usize = 8;
/// How deep a walk goes: each directory above the current one is remembered, in a hundred
/// bytes or so.
pub const MAX_DEPTH: usize = 1 << 16;
/// Names that are told of each end of a long path.
const TOLD: usize = 8;

/// What comes next in a [`Walk`]. A name is one in [`Walk::directory`].
#[derive(Debug)]
pub enum Step {
    /// Anything but a directory.
    File(CString),
    /// A directory, after everything in it.
    Directory(CString, Passed),
    /// A directory that cannot be entered: [`Errno::XDEV`] when something is mounted on it,
    /// [`Errno::NOTDIR`] or [`Errno::LOOP`] when something else has taken its place.
    Refused(CString, Errno),
    /// A directory that is further from the root than can be remembered.
    TooDeep(CString),
    /// The rest of [`Walk::directory`] cannot be read.
    Unread(Errno),
}

impl Step {
    /// Fails where this leaves something out, for walks that are to be complete.
    ///
    /// # Errors
    /// Why this leaves something out.
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

    /// The name that it is about.
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

/// A directory that a walk has been through.
#[derive(Debug)]
pub struct Passed(Dir);

impl Passed {
    /// The directory itself, whatever has its name by now.
    ///
    /// # Errors
    /// None on Linux.
    pub fn directory(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.0.fd()?)
    }
}

/// A walk through everything below a directory. It can be interrupted at any step.
#[derive(Debug)]
pub struct Walk {
    root: OwnedFd,
    /// The directories from the root to the parent of the current one, each with its stream while
    /// it is open.
    above: Vec<(Level, Option<Dir>)>,
    current: Level,
    stream: Dir,
    max_depth: usize,
}

/// A directory from the root of a walk to where it is.
#[derive(Debug)]
struct Level {
    /// Its name in the one above it; empty for the root.
    name: CString,
    id: Id,
    /// The position where reading it goes on.
    position: i64,
}

impl Walk {
    /// A walk through what is below a directory, at a path whose last part is no link.
    ///
    /// # Errors
    /// It cannot be opened, or is no directory.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self::of(open::root(path)?)?)
    }

    /// A walk through what is below an open directory.
    ///
    /// # Errors
    /// It cannot be opened again, or is no directory.
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

    /// The directory that the name of the last step is in; the root once there are no more steps.
    ///
    /// # Errors
    /// None on Linux.
    pub fn directory(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.stream.fd()?)
    }

    /// The next step; `None` when everything was passed. What is made or moved meanwhile
    /// may be passed or not.
    ///
    /// # Errors
    /// The root cannot be opened any more, when that is the only way back. There are no more
    /// steps then.
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

    /// Goes into a directory in the current one, also when it was passed already.
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

    /// The way from the root to a name in the current directory, or to that itself; where
    /// it is long, its ends.
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

    /// Passes an entry of the current directory, or goes into it.
    fn pass(&mut self, entry: DirEntry) -> io::Result<Option<Step>> {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            return Ok(None);
        }
        let name = name.to_owned();
        let kind = match entry.file_type() {
            // Not every file system tells.
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

    /// Goes back to the parent of the current directory.
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

    /// Goes on in the deepest directory that the way from the root to `moved` still reaches.
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
    /// Opens its stream where reading it goes on.
    fn read_on(&self, opened: Opened) -> io::Result<Dir> {
        let mut stream = Dir::new(opened.fd)?;
        stream.seek(self.position)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests;
