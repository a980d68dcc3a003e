//! Gives the files of a volume to a pod's `fsGroup`.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::Path,
};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags};
use tracing::warn;

use super::{VolumeError, plugin::FsGroup};

const READ_WRITE: u32 = 0o660;
const READ: u32 = 0o440;
const SEARCH: u32 = 0o110;
const SET_GID: u32 = 0o2000;

/// Gives everything in a volume to a group: readable, and writable unless the volume is read
/// only, and new files go to the group too. Links are not followed. Blocks.
///
/// # Errors
/// A directory cannot be read. A file that cannot be changed is none: network file systems
/// may forbid it.
pub fn set(dir: &Path, group: FsGroup, read_only: bool) -> Result<(), VolumeError> {
    if group.on_root_mismatch && is_right(dir, group.gid, read_only) {
        return Ok(());
    }
    let mut walk = Walk {
        gid: Gid::from_raw(group.gid),
        read_only,
        refused: None,
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let walked = rustix::fs::open(dir, flags, Mode::empty())
        .map_err(io::Error::from)
        .and_then(|root| walk.change(root.as_fd()));
    if let Some(error) = walk.refused {
        warn!(path = %dir.display(), gid = group.gid, %error, "cannot give all files to fsGroup");
    }
    walked.map_err(|error| VolumeError::io("give to fsGroup", dir, error))
}

/// Whether the root of a volume is as [`set`] leaves it.
fn is_right(dir: &Path, gid: u32, read_only: bool) -> bool {
    let Ok(root) = fs::metadata(dir) else {
        return false;
    };
    let needed = SEARCH | SET_GID | if read_only { READ } else { READ_WRITE };
    root.is_dir() && root.gid() == gid && root.permissions().mode() & needed == needed
}

struct Walk {
    gid: Gid,
    read_only: bool,
    /// The first file that could not be changed.
    refused: Option<io::Error>,
}

impl Walk {
    /// Changes an open file, after what is in it: a directory that is right says that all
    /// below it is.
    fn change(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let found = rustix::fs::fstat(file)?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind.is_dir() {
            self.change_entries(file)?;
        }
        let owned = rustix::fs::chownat(file, "", None, Some(self.gid), AtFlags::EMPTY_PATH);
        self.note(owned.map_err(io::Error::from));
        // A link has no mode of its own.
        if kind.is_symlink() {
            return Ok(());
        }
        let mut mode = if self.read_only { READ } else { READ_WRITE };
        if kind.is_dir() {
            mode |= SEARCH | SET_GID;
        }
        let mode = fs::Permissions::from_mode(found.st_mode & 0o7777 | mode);
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.note(fs::set_permissions(path, mode));
        Ok(())
    }

    fn change_entries(&mut self, dir: BorrowedFd<'_>) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(dir, ".", flags, Mode::empty())?;
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(&opened, name, flags, Mode::empty()) {
                Ok(child) => self.change(child.as_fd())?,
                // Removed meanwhile.
                Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn note(&mut self, changed: io::Result<()>) {
        if let Err(error) = changed {
            self.refused.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn group(gid: u32, on_root_mismatch: bool) -> FsGroup {
        FsGroup {
            gid,
            on_root_mismatch,
        }
    }

    fn look(path: &Path) -> (u32, u32) {
        let found = fs::symlink_metadata(path).unwrap();
        (found.gid(), found.permissions().mode() & 0o7777)
    }

    fn volume() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        for file in ["a", "sub/b"] {
            fs::write(dir.path().join(file), "x").unwrap();
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(dir.path().join(file), mode).unwrap();
        }
        dir
    }

    #[test]
    fn everything_goes_to_the_group() {
        let dir = volume();
        let path = dir.path();
        set(path, group(4321, false), false).unwrap();
        assert_eq!(look(&path.join("a")), (4321, 0o660));
        assert_eq!(look(&path.join("sub/b")), (4321, 0o660));
        let (gid, mode) = look(path);
        assert_eq!((gid, mode & 0o2770), (4321, 0o2770));
        set(path, group(1234, false), true).unwrap();
        assert_eq!(look(&path.join("a")), (1234, 0o660));
    }

    #[test]
    fn a_right_root_spares_the_rest() {
        let dir = volume();
        let path = dir.path();
        set(path, group(4321, true), false).unwrap();
        assert_eq!(look(&path.join("a")).0, 4321);
        std::os::unix::fs::chown(path.join("a"), None, Some(7)).unwrap();
        set(path, group(4321, true), false).unwrap();
        assert_eq!(look(&path.join("a")).0, 7);
        set(path, group(4321, false), false).unwrap();
        assert_eq!(look(&path.join("a")).0, 4321);
    }

    #[test]
    fn links_are_not_followed() {
        let dir = volume();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let before = look(outside.path());
        symlink(outside.path(), dir.path().join("link")).unwrap();
        symlink("/", dir.path().join("sub/root")).unwrap();
        set(dir.path(), group(4321, false), false).unwrap();
        assert_eq!(look(outside.path()), before);
        assert_eq!(look(&dir.path().join("link")).0, 4321);
        assert_ne!(look(Path::new("/")).0, 4321);
    }
}
