//! The disk usage of a directory that a container may be writing to.

use std::{collections::HashSet, io, path::Path};

use rustix::{
    fs::{AtFlags, FileType, Stat, fstat, statat},
    io::Errno,
};

use crate::{Step, Walk};

/// The unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// The limit on remembered hard-linked files, so that a container cannot exhaust the caller's memory
/// by creating them.
const MAX_LINKED: usize = 1 << 17;

/// An interruptible walk that counts what a directory and everything below it take on disk, but not
/// what is mounted there. A file with several hard links counts once.
#[derive(Debug)]
pub struct DiskWalk {
    walk: Walk,
    /// Files with several hard links, which are counted once.
    linked: HashSet<(u64, u64)>,
    bytes: u64,
    inodes: u64,
    max_linked: usize,
    is_partial: bool,
}

impl DiskWalk {
    /// Opens a directory, and counts it.
    ///
    /// # Errors
    /// It does not exist or is not a directory.
    pub fn start(directory: &Path) -> io::Result<Self> {
        let mut walk = Self {
            walk: Walk::open(directory)?,
            linked: HashSet::new(),
            bytes: 0,
            inodes: 0,
            max_linked: MAX_LINKED,
            is_partial: false,
        };
        let own = fstat(walk.walk.directory()?)?;
        walk.count(&own);
        Ok(walk)
    }

    /// Continues while `may` is true; returns whether there is more. Files that are removed
    /// meanwhile or cannot be read are not counted.
    pub fn go_on(&mut self, may: impl Fn() -> bool) -> bool {
        while may() {
            match self.walk.step() {
                Ok(Some(step)) => {
                    if let Ok(found) = self.look_at(&step) {
                        self.count(&found);
                    }
                }
                Ok(None) => return false,
                Err(_) => self.is_partial = true,
            }
        }
        true
    }

    fn look_at(&mut self, step: &Step) -> io::Result<Stat> {
        let name = match step {
            Step::Directory(_, passed) => return Ok(fstat(passed.directory()?)?),
            Step::Refused(_, Errno::XDEV) => return Err(Errno::XDEV.into()),
            Step::File(name) | Step::Refused(name, _) => name,
            Step::TooDeep(name) => {
                self.is_partial = true;
                name
            }
            Step::Unread(error) => return Err((*error).into()),
        };
        let directory = self.walk.directory()?;
        Ok(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Whether the counts are lower bounds, because there are more nested directories or
    /// hard-linked files than the limits.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    fn count(&mut self, stat: &Stat) {
        let directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
        if !directory && stat.st_nlink > 1 {
            let file = (stat.st_dev, stat.st_ino);
            if self.linked.contains(&file) {
                return;
            }
            if self.linked.len() >= self.max_linked {
                // It may have been counted by another name.
                self.is_partial = true;
                return;
            }
            self.linked.insert(file);
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        self.inodes += 1;
    }

    /// The bytes on disk so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The inodes so far.
    pub fn inodes(&self) -> u64 {
        self.inodes
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use rustix::fs::{Mode, OFlags, mkdirat, openat};

    use super::*;

    fn walk(directory: &Path) -> (u64, u64) {
        let mut walk = DiskWalk::start(directory).unwrap();
        while walk.go_on(|| true) {}
        (walk.bytes(), walk.inodes())
    }

    fn is_partial(directory: &Path) -> bool {
        let mut walk = DiskWalk::start(directory).unwrap();
        while walk.go_on(|| true) {}
        walk.is_partial()
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
    fn what_is_deeper_than_a_path_is_long_counts() {
        // In memory, because a disk would take most of the time.
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut at = rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap();
        let name = "d".repeat(100);
        for _ in 0..100 {
            mkdirat(&at, &name, Mode::RWXU).unwrap();
            at = openat(&at, &name, flags, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&at, "file", flags, Mode::RUSR).unwrap();
        fs::File::from(file).write_all(&vec![1; 1 << 20]).unwrap();
        let (bytes, inodes) = walk(dir.path());
        assert_eq!(inodes, 102);
        assert!(bytes >= 1 << 20, "{bytes}");
    }

    #[test]
    fn a_directory_that_became_a_link_is_not_entered() {
        let dir = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("file"), "x").unwrap();
        for name in ["a", "b"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let mut walk = DiskWalk::start(dir.path()).unwrap();
        // The walk is interrupted after both were seen and one was entered.
        let steps = std::cell::Cell::new(0);
        assert!(walk.go_on(|| steps.replace(steps.get() + 1) == 0));
        assert_eq!(walk.inodes(), 2);
        for name in ["a", "b"] {
            fs::remove_dir(dir.path().join(name)).unwrap();
            std::os::unix::fs::symlink(outside.path(), dir.path().join(name)).unwrap();
        }
        while walk.go_on(|| true) {}
        assert_eq!(walk.inodes(), 3);
    }

    #[test]
    fn a_walk_remembers_no_more_than_it_may() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..20 {
            let file = dir.path().join(n.to_string());
            fs::write(&file, "").unwrap();
            fs::hard_link(&file, dir.path().join(format!("{n}-again"))).unwrap();
        }
        assert!(!is_partial(dir.path()));
        let mut walk = DiskWalk::start(dir.path()).unwrap();
        walk.max_linked = 10;
        while walk.go_on(|| true) {}
        // The root and the first ten files.
        assert_eq!((walk.inodes(), walk.linked.len()), (11, 10));
        assert!(walk.is_partial());
    }

    #[test]
    fn mounted_directories_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        for path in [&source, &target] {
            fs::create_dir(path).unwrap();
        }
        fs::write(source.join("file"), "x").unwrap();
        rustix::mount::mount_bind(&source, &target).unwrap();
        let (_, inodes) = walk(dir.path());
        rustix::mount::unmount(&target, rustix::mount::UnmountFlags::empty()).unwrap();
        // The root, source, file.
        assert_eq!(inodes, 3);
    }

    #[test]
    fn what_grows_during_the_walk_counts_in_full_or_not_at_all() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        for n in 0..100 {
            fs::write(dir.path().join(n.to_string()), vec![1; 4096]).unwrap();
        }
        let mut walk = DiskWalk::start(dir.path()).unwrap();
        let mut more = 0;
        // One step at a time, with a new directory and file before each.
        loop {
            let new = dir.path().join(format!("new-{more}"));
            if more < 50 {
                fs::create_dir(&new).unwrap();
                fs::write(new.join("file"), vec![1; 4096]).unwrap();
                more += 1;
            }
            let steps = std::cell::Cell::new(0);
            if !walk.go_on(|| steps.replace(steps.get() + 1) == 0) {
                break;
            }
        }
        assert!((101..=201).contains(&walk.inodes()), "{}", walk.inodes());
        let new = (walk.inodes() - 101) / 2;
        assert!(walk.bytes() >= (100 + new) * 4096, "{}", walk.bytes());
        assert_eq!(walk.bytes() % 4096, 0);
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        assert!(DiskWalk::start(Path::new("/no/such/directory")).is_err());
    }
}
