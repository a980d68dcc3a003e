//! A name in a directory, resolved without following symbolic links that others may have created.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, mkdirat, openat, statat},
    io::Errno,
};

/// A name in an open directory.
#[derive(Debug)]
pub struct GuardedPath {
    directory: OwnedFd,
    name: OsString,
}

impl GuardedPath {
    /// Resolves an absolute path, whose directory must exist. The last `guarded` directories must
    /// not be symbolic links; those above may be.
    ///
    /// # Errors
    /// `NotFound` if the directory does not exist. The error for a symbolic link contains its name.
    pub fn open(path: &Path, guarded: usize) -> io::Result<Self> {
        Self::reach(path, guarded, |_, _| Ok(()))
    }

    /// As [`GuardedPath::open`], but creates missing directories; guarded ones get the mode `mode`.
    ///
    /// # Errors
    /// A directory cannot be created. The error for a symbolic link contains its name.
    pub fn make(path: &Path, guarded: usize, mode: Mode) -> io::Result<Self> {
        Self::reach(path, guarded, |parent, name| {
            let Some(parent) = parent else {
                return fs::create_dir_all(name);
            };
            match mkdirat(parent, name, mode) {
                Ok(()) | Err(Errno::EXIST) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// Opens the directories of a path in order and calls `prepare` before each. The directories
    /// above the guarded ones are opened at once, and `prepare` gets no parent for them.
    fn reach(
        path: &Path,
        guarded: usize,
        prepare: impl Fn(Option<&OwnedFd>, &Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        let invalid = || {
            let what = "the path of a file must be absolute and without ..";
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let (Some(directory), Some(name), true) =
            (path.parent(), path.file_name(), path.is_absolute())
        else {
            return Err(invalid());
        };
        let components: Vec<_> = directory.components().collect();
        // The root exists and is not a link.
        let before = components.len().saturating_sub(guarded).max(1);
        let (before, guarded) = components.split_at(before.min(components.len()));
        let before: PathBuf = before.iter().collect();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        prepare(None, &before)?;
        let mut directory = openat(CWD, &before, flags, Mode::empty())?;
        for component in guarded {
            let Component::Normal(name) = component else {
                return Err(invalid());
            };
            prepare(Some(&directory), Path::new(name))?;
            let flags = flags | OFlags::NOFOLLOW;
            directory = match openat(&directory, *name, flags, Mode::empty()) {
                Err(Errno::NOTDIR | Errno::LOOP) if is_link(&directory, name)? => {
                    let name = name.display();
                    let what = format!("{name} is a link, which is not followed");
                    return Err(io::Error::other(what));
                }
                opened => opened?,
            };
        }
        Ok(Self {
            directory,
            name: name.to_owned(),
        })
    }

    /// The open directory.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The name in the directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Returns the metadata of the name, without following a link.
    ///
    /// # Errors
    /// `NotFound` or another error of the system.
    pub fn stat(&self) -> io::Result<Stat> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        Ok(statat(&self.directory, &self.name, flags)?)
    }

    /// Checks whether the name is a symbolic link.
    ///
    /// # Errors
    /// An error of the system.
    pub fn is_link(&self) -> io::Result<bool> {
        is_link(&self.directory, &self.name)
    }
}

fn is_link(directory: &OwnedFd, name: &OsStr) -> io::Result<bool> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(FileType::from_raw_mode(found.st_mode).is_symlink()),
        Err(Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const MODE: Mode = Mode::from_raw_mode(0o755);

    #[test]
    fn links_before_the_guarded_directories_are_followed_and_guarded_ones_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("disk/web/app")).unwrap();
        symlink(path("disk"), path("pods")).unwrap();
        let place = GuardedPath::open(&path("pods/web/app/0.log"), 2).unwrap();
        assert_eq!(place.name(), "0.log");
        let (found, there) = (
            rustix::fs::fstat(place.directory()).unwrap(),
            rustix::fs::stat(path("disk/web/app")).unwrap(),
        );
        assert_eq!(found.st_ino, there.st_ino);
        assert!(!place.is_link().unwrap());
        assert_eq!(place.stat().unwrap_err().kind(), io::ErrorKind::NotFound);

        fs::create_dir(path("disk/third")).unwrap();
        symlink(path("disk/web"), path("disk/other")).unwrap();
        symlink(path("disk/web/app"), path("disk/third/app")).unwrap();
        for (file, link) in [
            ("pods/other/app/0.log", "other"),
            ("pods/third/app/0.log", "app"),
        ] {
            let file = path(file);
            for place in [
                GuardedPath::open(&file, 2),
                GuardedPath::make(&file, 2, MODE),
            ] {
                let error = place.unwrap_err().to_string();
                assert_eq!(error, format!("{link} is a link, which is not followed"));
            }
        }
        assert!(GuardedPath::open(&path("pods/other/app/0.log"), 1).is_ok());
    }

    #[test]
    fn directories_are_made_when_that_is_asked() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pods/web/app/0.log");
        let missing = GuardedPath::open(&file, 2).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        for _ in 0..2 {
            let place = GuardedPath::make(&file, 2, MODE).unwrap();
            symlink("/nowhere", &file).unwrap();
            assert!(place.is_link().unwrap());
            fs::remove_file(&file).unwrap();
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for path in ["/", "", "/a/../0.log", "..", "/..", "app/0.log"] {
            assert!(GuardedPath::open(Path::new(path), 2).is_err(), "{path}");
        }
    }
}
