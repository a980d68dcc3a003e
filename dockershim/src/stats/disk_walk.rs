//! A walk through a directory that a container writes to meanwhile: it never follows a
//! link that the container has put in the place of a directory.

use std::{
    collections::HashSet,
    ffi::OsStr,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat},
    io::Errno,
};

/// What `st_blocks` counts.
const BLOCK: u64 = 512;

/// What a walk remembers at most, in directories to come and files with several names: a
/// container must not fill the shim's memory by what it writes.
const MOST: usize = 1 << 17;

/// A walk that can be interrupted.
#[derive(Debug)]
pub struct Walk {
    root: OwnedFd,
    /// Where it is, relative to the root.
    current: Option<(PathBuf, Dir)>,
    pending: Vec<PathBuf>,
    /// Files with several names, which count once.
    linked: HashSet<(u64, u64)>,
    bytes: u64,
    inodes: u64,
    most: usize,
}

impl Walk {
    /// Opens a directory, and counts it.
    ///
    /// # Errors
    /// When it is not there or no directory.
    pub fn start(directory: &Path) -> rustix::io::Result<Self> {
        let root = openat(CWD, directory, flags(), Mode::empty())?;
        let own = rustix::fs::fstat(&root)?;
        let mut walk = Self {
            root,
            current: None,
            pending: vec![PathBuf::from(".")],
            linked: HashSet::new(),
            bytes: 0,
            inodes: 0,
            most: MOST,
        };
        walk.count(&own);
        Ok(walk)
    }

    /// Goes on while `may`; returns whether there is more. What goes away meanwhile, or
    /// cannot be read, is not counted. It is not gone on with once it [`is_too_large`].
    ///
    /// [`is_too_large`]: Self::is_too_large
    pub fn go_on(&mut self, may: impl Fn() -> bool) -> bool {
        while may() {
            if self.is_too_large() {
                return false;
            }
            let Some((path, directory)) = &mut self.current else {
                let Some(path) = self.pending.pop() else {
                    return false;
                };
                let opened = open_beneath(&self.root, &path).and_then(Dir::new);
                self.current = opened.ok().map(|directory| (path, directory));
                continue;
            };
            let Some(Ok(entry)) = directory.read() else {
                self.current = None;
                continue;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(parent) = directory.fd() else { continue };
            let Ok(stat) = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let below = path.join(OsStr::from_bytes(name.to_bytes()));
                self.pending.push(below);
            }
            self.count(&stat);
        }
        true
    }

    /// Whether there is more to remember than may be.
    pub fn is_too_large(&self) -> bool {
        self.pending.len() + self.linked.len() > self.most
    }

    fn count(&mut self, stat: &Stat) {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !directory && stat.st_nlink > 1 && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        self.inodes += 1;
    }

    /// Bytes on the disk so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Inodes so far.
    pub fn inodes(&self) -> u64 {
        self.inodes
    }
}

fn flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

fn open_beneath(root: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    match openat2(root, path, flags(), Mode::empty(), resolve) {
        // Before Linux 5.6, and under a seccomp profile of that time.
        Err(Errno::NOSYS | Errno::PERM) => openat(root, path, flags(), Mode::empty()),
        opened => opened,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn walk(directory: &Path) -> (u64, u64) {
        let mut walk = Walk::start(directory).unwrap();
        while walk.go_on(|| true) {}
        (walk.bytes(), walk.inodes())
    }

    #[test]
    fn each_file_counts_once_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("big"), vec![1; 1 << 20]).unwrap();
        let (before, inodes) = walk(dir.path());
        assert_eq!(inodes, 1);
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        fs::write(dir.path().join("a/b/file"), vec![1; 256 << 10]).unwrap();
        fs::hard_link(dir.path().join("a/b/file"), dir.path().join("again")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("out")).unwrap();
        let (bytes, inodes) = walk(dir.path());
        // The root, a, b, file, out.
        assert_eq!(inodes, 5);
        let more = bytes - before;
        assert!((256 << 10..512 << 10).contains(&more), "{more}");
    }

    #[test]
    fn a_directory_that_became_a_link_is_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "x").unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        let mut walk = Walk::start(dir.path()).unwrap();
        // Until the directory has been seen, but not entered.
        let steps = std::cell::Cell::new(0);
        while walk.pending.is_empty() || walk.current.is_none() {
            steps.set(0);
            assert!(walk.go_on(|| steps.replace(steps.get() + 1) == 0));
        }
        fs::remove_dir(dir.path().join("a")).unwrap();
        std::os::unix::fs::symlink(outside.path(), dir.path().join("a")).unwrap();
        while walk.go_on(|| true) {}
        assert_eq!(walk.inodes(), 2);
    }

    #[test]
    fn a_walk_remembers_no_more_than_it_may() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20 {
            fs::create_dir(dir.path().join(n.to_string())).unwrap();
        }
        let mut walk = Walk::start(dir.path()).unwrap();
        walk.most = 10;
        while walk.go_on(|| true) {}
        assert!(walk.is_too_large() && walk.pending.len() == 11);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(Walk::start(Path::new("/no/such/directory")).is_err());
    }
}
