//! Sets the group of a volume's files to a pod's `fsGroup`.

use std::{
    fs, io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd},
        unix::fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::Path,
};

use rustix::{
    fs::{AtFlags, FileType, Gid, Mode, OFlags, Stat},
    io::Errno,
};
use tracing::warn;
use tree_walk::{Step, Walk};

use super::{VolumeError, ownership_progress::OwnershipProgress, plugin::FsGroup};

const READ_WRITE: u32 = 0o660;
const READ: u32 = 0o440;
const SEARCH: u32 = 0o110;
const SET_GID: u32 = 0o2000;

/// Gives everything in a volume to a group. The group may read all files, and write to them unless
/// the volume is read-only; new files inherit the group. Symlinks are not followed. Blocks.
///
/// # Errors
/// A directory cannot be read. A file that cannot be changed is no error: network file systems may
/// forbid it.
pub fn set(
    dir: &Path,
    group: FsGroup,
    read_only: bool,
    progress: &OwnershipProgress,
) -> Result<(), VolumeError> {
    if group.on_root_mismatch && is_right(dir, group.gid, read_only) {
        return Ok(());
    }
    progress.begin();
    let mut change = OwnershipChange {
        gid: Gid::from_raw(group.gid),
        read_only,
        progress,
        refused: None,
    };
    let changed = change.everything(dir);
    progress.end();
    if let Some(error) = change.refused {
        warn!(
            path = %dir.display(), gid = group.gid, %error,
            "cannot change the group of all files to fsGroup"
        );
    }
    changed.map_err(|error| VolumeError::io("set fsGroup on", dir, error))
}

/// Whether the root of a volume is in the state in which [`set`] leaves it.
fn is_right(dir: &Path, gid: u32, read_only: bool) -> bool {
    let Ok(root) = fs::metadata(dir) else {
        return false;
    };
    let needed = SEARCH | SET_GID | if read_only { READ } else { READ_WRITE };
    root.is_dir() && root.gid() == gid && root.permissions().mode() & needed == needed
}

struct OwnershipChange<'a> {
    gid: Gid,
    read_only: bool,
    progress: &'a OwnershipProgress,
    /// The error of the first change that failed.
    refused: Option<io::Error>,
}

impl OwnershipChange<'_> {
    /// Changes each directory after its contents: a directory that is right implies that everything
    /// below it is. Other mounts inside the volume are skipped.
    fn everything(&mut self, dir: &Path) -> io::Result<()> {
        let root = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        if !kind(&rustix::fs::fstat(&root)?).is_dir() {
            return self.change(root.as_fd());
        }
        let mut walk = Walk::of(root)?;
        while let Some(step) = walk.step()? {
            match &step {
                Step::Directory(_, passed) => self.change(passed.directory()?)?,
                Step::File(name) | Step::Refused(name, Errno::NOTDIR | Errno::LOOP) => {
                    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    match rustix::fs::openat(walk.directory()?, name, flags, Mode::empty()) {
                        Ok(file) => self.change(file.as_fd())?,
                        // Removed in the meantime.
                        Err(Errno::NOENT) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Step::Refused(_, Errno::NOENT | Errno::XDEV) => {}
                _ => step.ensure_passed()?,
            }
        }
        self.change(walk.directory()?)
    }

    fn change(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.progress.count();
        let found = rustix::fs::fstat(file)?;
        let kind = kind(&found);
        let owned = rustix::fs::chownat(file, "", None, Some(self.gid), AtFlags::EMPTY_PATH);
        self.note(owned.map_err(io::Error::from));
        // A symlink has no mode of its own.
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

    fn note(&mut self, changed: io::Result<()>) {
        if let Err(error) = changed {
            self.refused.get_or_insert(error);
        }
    }
}

fn kind(found: &Stat) -> FileType {
    FileType::from_raw_mode(found.st_mode)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::mount::UnmountFlags;

    use super::*;

    fn change(dir: &Path, group: FsGroup, read_only: bool) {
        set(dir, group, read_only, &OwnershipProgress::default()).unwrap();
    }

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
        change(path, group(4321, false), false);
        assert_eq!(look(&path.join("a")), (4321, 0o660));
        assert_eq!(look(&path.join("sub/b")), (4321, 0o660));
        let (gid, mode) = look(path);
        assert_eq!((gid, mode & 0o2770), (4321, 0o2770));
        change(path, group(1234, false), true);
        assert_eq!(look(&path.join("a")), (1234, 0o660));
    }

    #[test]
    fn a_right_root_spares_the_rest() {
        let dir = volume();
        let path = dir.path();
        change(path, group(4321, true), false);
        assert_eq!(look(&path.join("a")).0, 4321);
        std::os::unix::fs::chown(path.join("a"), None, Some(7)).unwrap();
        change(path, group(4321, true), false);
        assert_eq!(look(&path.join("a")).0, 7);
        change(path, group(4321, false), false);
        assert_eq!(look(&path.join("a")).0, 4321);
    }

    #[test]
    fn links_are_not_followed() {
        let dir = volume();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let before = look(outside.path());
        symlink(outside.path(), dir.path().join("link")).unwrap();
        symlink("/", dir.path().join("sub/root")).unwrap();
        change(dir.path(), group(4321, false), false);
        assert_eq!(look(outside.path()), before);
        assert_eq!(look(&dir.path().join("link")).0, 4321);
        assert_ne!(look(Path::new("/")).0, 4321);
    }

    #[test]
    fn what_is_mounted_in_a_volume_is_another_ones() {
        let (dir, other) = (volume(), volume());
        let mounted = dir.path().join("sub/mounted");
        fs::create_dir(&mounted).unwrap();
        rustix::mount::mount_bind(other.path(), &mounted).unwrap();
        let set = set(
            dir.path(),
            group(4321, false),
            false,
            &OwnershipProgress::default(),
        );
        rustix::mount::unmount(&mounted, UnmountFlags::empty()).unwrap();
        set.unwrap();
        assert_eq!(look(&dir.path().join("sub/b")).0, 4321);
        for path in ["", "a", "sub"] {
            assert_ne!(look(&other.path().join(path)).0, 4321, "{path:?}");
        }
    }
}
