//! The location of a container's log, opened without following symlinks.
//!
//! A process that can write to the directory of all logs, such as a pod that mounts the node's
//! `/var/log`, can replace a pod's directory, a container's directory or a log with a symlink. The
//! shim runs as root, and would create and write files wherever the symlink points.

use std::{fs::File, io, path::Path};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, openat, statat, symlinkat, unlinkat},
    io::Errno,
};

/// The number of directories in a path that are checked: the pod's and the container's. Those
/// before are the node's and may be symlinks, as `/var/log` is on some nodes.
const OF_THE_POD: usize = 2;
/// The mode of directories that the shim creates.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);
/// The mode of logs that the shim creates, as with other runtimes: only root and the log's group
/// can read container output.
const LOG_MODE: Mode = Mode::from_raw_mode(0o640);
const OTHERS: Mode = Mode::from_raw_mode(0o007);

/// The directory of a container's log, opened without following symlinks, and the log's name.
#[derive(Debug)]
pub(super) struct LogLocation(tree_walk::GuardedPath);

impl LogLocation {
    /// Opens the location of a log whose directory exists.
    ///
    /// # Errors
    /// `NotFound` if the directory is missing; a symlink is named.
    pub(super) fn open(log: &Path) -> io::Result<Self> {
        tree_walk::GuardedPath::open(log, OF_THE_POD).map(Self)
    }

    /// Opens the location of a log and creates missing directories.
    ///
    /// # Errors
    /// A directory cannot be created; a symlink is named.
    pub(super) fn make(log: &Path) -> io::Result<Self> {
        tree_walk::GuardedPath::make(log, OF_THE_POD, DIRECTORY_MODE).map(Self)
    }

    /// Opens the log for appending and creates it if it is missing. Removes access for others than
    /// its owner and group; replaces a symlink, such as one to the engine's own log.
    ///
    /// # Errors
    /// It cannot be opened or created, or is not a regular file.
    pub(super) fn append(&self) -> io::Result<File> {
        // Non-blocking, so that opening a FIFO does not wait for a reader.
        let flags = OFlags::RDWR
            | OFlags::APPEND
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::CLOEXEC;
        let open = || openat(self.0.directory(), self.0.name(), flags, LOG_MODE);
        let opened = match open() {
            Err(Errno::LOOP) => {
                self.remove_link()?;
                open()?
            }
            opened => opened?,
        };
        let stat = rustix::fs::fstat(&opened)?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mode = Mode::from_raw_mode(stat.st_mode);
        if mode.intersects(OTHERS) {
            rustix::fs::fchmod(&opened, mode - OTHERS)?;
        }
        Ok(opened.into())
    }

    /// Creates a symlink to `target`, replacing any symlink there.
    ///
    /// # Errors
    /// The system's; there is something other than a symlink.
    pub(super) fn link(&self, target: &Path) -> io::Result<()> {
        self.remove_link()?;
        Ok(symlinkat(target, self.0.directory(), self.0.name())?)
    }

    /// Removes a symlink; anything else is left in place.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn remove_link(&self) -> io::Result<()> {
        if !self.0.is_link()? {
            return Ok(());
        }
        match unlinkat(self.0.directory(), self.0.name(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The size of the log with this inode after it was renamed for rotation, to a name that starts
    /// with the old one.
    pub(super) fn renamed(&self, inode: u64) -> Option<u64> {
        let mut entries = rustix::fs::Dir::read_from(self.0.directory()).ok()?;
        entries.find_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name();
            if !name
                .to_bytes()
                .starts_with(self.0.name().as_encoded_bytes())
            {
                return None;
            }
            let found = statat(self.0.directory(), name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
            (found.st_ino == inode).then(|| u64::try_from(found.st_size).unwrap_or_default())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write as _,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn a_log_is_made_with_its_directories_and_not_for_others() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("pods/web/app/0.log");
        assert_eq!(
            LogLocation::open(&log).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
        let location = LogLocation::make(&log).unwrap();
        location.append().unwrap().write_all(b"one\n").unwrap();
        assert_eq!(mode(&log), 0o640);
        // The mode of earlier versions.
        fs::set_permissions(&log, fs::Permissions::from_mode(0o644)).unwrap();
        let again = LogLocation::open(&log).unwrap().append();
        again.unwrap().write_all(b"two\n").unwrap();
        assert_eq!(mode(&log), 0o640);
        assert_eq!(fs::read_to_string(&log).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_link_to_the_log_gives_way_and_one_in_its_path_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir_all(outside.join("app")).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        // The directory of all logs may be a symlink.
        fs::create_dir(dir.path().join("disk")).unwrap();
        symlink(dir.path().join("disk"), dir.path().join("pods")).unwrap();
        let log = dir.path().join("pods/web/app/0.log");
        let location = LogLocation::make(&log).unwrap();
        symlink(outside.join("kept"), &log).unwrap();
        location.append().unwrap().write_all(b"one\n").unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "one\n");
        assert!(dir.path().join("disk/web/app/0.log").is_file());
        assert_eq!(fs::read_to_string(outside.join("kept")).unwrap(), "kept");

        for (link, target) in [("pods/other", ""), ("pods/third/app", "app")] {
            let link = dir.path().join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(outside.join(target), &link).unwrap();
        }
        for (log, link) in [
            ("pods/other/app/0.log", "other"),
            ("pods/third/app/0.log", "app"),
        ] {
            let log = dir.path().join(log);
            for location in [LogLocation::open(&log), LogLocation::make(&log)] {
                let error = location.unwrap_err().to_string();
                assert_eq!(error, format!("{link} is a link, which is not followed"));
            }
        }
        assert_eq!(fs::read_dir(outside.join("app")).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_file_is_no_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let fifo = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &log, FileType::Fifo, fifo, 0).unwrap();
        assert!(LogLocation::open(&log).unwrap().append().is_err());
        for path in ["/", "", "/a/../0.log", "..", "app/0.log"] {
            assert!(LogLocation::open(Path::new(path)).is_err(), "{path}");
        }
    }

    #[test]
    fn a_renamed_log_is_found_by_its_inode() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        fs::write(&log, "12345").unwrap();
        let inode = fs::metadata(&log).unwrap().ino();
        fs::rename(&log, dir.path().join("0.log.20260101-000000")).unwrap();
        let location = LogLocation::open(&log).unwrap();
        assert_eq!(location.renamed(inode), Some(5));
        assert_eq!(location.renamed(inode + 1_000_000), None);
    }
}
