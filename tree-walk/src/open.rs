//! Opens directories without following symbolic links or entering other mounts.

use std::{
    ffi::CStr,
    fs,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::{Errno, Result},
};

const FLAGS: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Device and inode.
pub(crate) type Id = (u64, u64);

/// An open directory.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) fd: OwnedFd,
    pub(crate) id: Id,
}

impl Opened {
    fn new(fd: OwnedFd) -> Result<Self> {
        let found = rustix::fs::fstat(&fd)?;
        let id = (found.st_dev, found.st_ino);
        Ok(Self { fd, id })
    }
}

/// Opens the directory `path`. The last component must not be a symbolic link.
pub(crate) fn root(path: &Path) -> Result<OwnedFd> {
    openat(CWD, path, FLAGS, Mode::empty())
}

/// Opens the same directory again, with a separate stream position.
pub(crate) fn again(dir: BorrowedFd<'_>) -> Result<Opened> {
    Opened::new(openat(dir, c".", FLAGS, Mode::empty())?)
}

/// Opens the current parent of a directory.
pub(crate) fn parent(dir: BorrowedFd<'_>) -> Result<Opened> {
    Opened::new(openat(dir, c"..", FLAGS, Mode::empty())?)
}

/// Opens a directory in another one; fails with [`Errno::XDEV`] if it is a mount point.
pub(crate) fn child(dir: BorrowedFd<'_>, name: &CStr) -> Result<Opened> {
    let resolve = ResolveFlags::NO_XDEV | ResolveFlags::NO_SYMLINKS;
    match openat2(dir, name, FLAGS, Mode::empty(), resolve) {
        // Kernels before Linux 5.6, and seccomp profiles of that time, lack openat2.
        Err(Errno::NOSYS | Errno::PERM) => child_by_mount_id(dir, name),
        opened => Opened::new(opened?),
    }
}

fn child_by_mount_id(dir: BorrowedFd<'_>, name: &CStr) -> Result<Opened> {
    let opened = openat(dir, name, FLAGS, Mode::empty())?;
    if mount_id(opened.as_fd())? != mount_id(dir)? {
        return Err(Errno::XDEV);
    }
    Opened::new(opened)
}

/// Returns the ID of the mount that a descriptor is in (proc_pid_fdinfo(5)).
fn mount_id(fd: BorrowedFd<'_>) -> Result<String> {
    let path = format!("/proc/self/fdinfo/{}", fd.as_raw_fd());
    let info = fs::read_to_string(path)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    id.map(|id| id.trim().to_owned()).ok_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use rustix::mount::{UnmountFlags, mount_bind, unmount};

    use super::*;

    type Open = fn(BorrowedFd<'_>, &CStr) -> Result<Opened>;

    #[test]
    fn neither_links_nor_mounts_are_entered() {
        let dir = tempfile::tempdir().unwrap();
        let (inner, mounted) = (dir.path().join("inner"), dir.path().join("mounted"));
        for path in [&inner, &mounted] {
            fs::create_dir(path).unwrap();
        }
        std::os::unix::fs::symlink(&inner, dir.path().join("link")).unwrap();
        mount_bind(&inner, &mounted).unwrap();
        let at = root(dir.path()).unwrap();
        let opened = [child as Open, child_by_mount_id].map(|open| {
            ["inner", "mounted", "link"].map(|name| {
                let name = std::ffi::CString::new(name).unwrap();
                open(at.as_fd(), &name).map(drop)
            })
        });
        unmount(&mounted, UnmountFlags::empty()).unwrap();
        for [inner, mounted, link] in opened {
            assert_eq!((inner, mounted), (Ok(()), Err(Errno::XDEV)));
            assert!(matches!(link, Err(Errno::NOTDIR | Errno::LOOP)), "{link:?}");
        }
    }
}
