//! Opens log files without following links.
//!
//! A pod that mounts the node's `/var/log` can replace the directory of a pod or a container, or a
//! log itself, with a link. The kubelet runs as root and would show, rename or delete whatever the
//! link points to. Upstream follows such links.
//!
//! A runtime may keep its log elsewhere and put a link where CRI expects it, as cri-dockerd does.
//! Such a link is followed once, to a file whose name starts with the ID of the container, which
//! no other file has.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, Stat, openat, readlinkat, renameat_with,
        statat, unlinkat,
    },
    io::Errno,
};

/// The directories of a path that belong to a pod: its own and that of the container. The ones
/// before them belong to the node and may be links, as `/var/log` is on some nodes.
const OF_THE_POD: usize = 2;

/// The directory of a container's log, reached without following links, and the name of the log.
#[derive(Debug)]
pub(super) struct LogPath(tree_walk::GuardedPath);

/// Opens the log of the container with this ID. Returns its path too.
///
/// # Errors
/// `NotFound`; the log cannot be opened, is not a file, or belongs to another container.
pub fn open_log(log: &Path, container_id: &str) -> io::Result<(File, PathBuf)> {
    let place = LogPath::open(log)?;
    if !place.0.is_link()? {
        return Ok((place.read(place.name())?, log.to_owned()));
    }
    let target = readlinkat(place.0.directory(), place.name(), Vec::new())?;
    let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
    let is_own = |name: &OsStr| {
        let name = name.as_encoded_bytes();
        !container_id.is_empty() && name.starts_with(container_id.as_bytes())
    };
    if !target.is_absolute() || !target.file_name().is_some_and(is_own) {
        let what = "it is a symlink that does not point to the container's own log";
        return Err(io::Error::other(what));
    }
    Ok((place.read(target.as_os_str())?, target))
}

impl LogPath {
    /// The path of a log, which may itself be missing.
    ///
    /// # Errors
    /// `NotFound` if its directory is missing; the path contains a link.
    pub(super) fn open(log: &Path) -> io::Result<Self> {
        tree_walk::GuardedPath::open(log, OF_THE_POD).map(Self)
    }

    /// The file name of the log.
    pub(super) fn name(&self) -> &OsStr {
        self.0.name()
    }

    /// The metadata of the log, without following a link.
    ///
    /// # Errors
    /// `NotFound` or another error of the system.
    pub(super) fn stat(&self) -> io::Result<Stat> {
        self.0.stat()
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// `NotFound`; it cannot be opened or is not a file.
    pub(super) fn read(&self, name: &OsStr) -> io::Result<File> {
        // Opening a pipe without a writer would block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(self.0.directory(), name, flags, Mode::empty())?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        Ok(file)
    }

    /// Creates a new file.
    ///
    /// # Errors
    /// `AlreadyExists` or another error of the system.
    pub(super) fn create(&self, name: &OsStr, mode: Mode) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        Ok(openat(self.0.directory(), name, flags, mode)?.into())
    }

    /// Renames a file in the directory unless the new name exists.
    ///
    /// # Errors
    /// `NotFound`, `AlreadyExists` or another error of the system.
    pub(super) fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        let flags = RenameFlags::NOREPLACE;
        let directory = self.0.directory();
        Ok(renameat_with(directory, from, directory, to, flags)?)
    }

    /// Removes a file or a link. A missing one is not an error.
    ///
    /// # Errors
    /// An error of the system.
    pub(super) fn remove(&self, name: &OsStr) -> io::Result<()> {
        match unlinkat(self.0.directory(), name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The sorted names in the directory that start with `prefix` and have the wanted file type.
    ///
    /// # Errors
    /// An error of the system.
    pub(super) fn names(
        &self,
        prefix: &OsStr,
        is_wanted: impl Fn(FileType) -> bool,
    ) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.0.directory())? {
            let entry = entry?;
            let name = entry.file_name();
            if !name.to_bytes().starts_with(prefix.as_encoded_bytes()) {
                continue;
            }
            let Ok(found) = statat(self.0.directory(), name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if is_wanted(FileType::from_raw_mode(found.st_mode)) {
                names.push(OsString::from_vec(name.to_bytes().to_vec()));
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    const ID: &str = "0123456789abcdef";

    /// What opening a log that is `link` leads to says.
    fn opened(log: &Path) -> Result<String, String> {
        let opened = open_log(log, ID).map_err(|error| error.to_string());
        opened.map(|(file, _)| io::read_to_string(file).unwrap())
    }

    #[test]
    fn a_link_leads_to_the_containers_own_log_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("engine").join(ID)).unwrap();
        let own = path("engine").join(ID).join(format!("{ID}-json.log"));
        fs::write(&own, "own").unwrap();
        fs::write(path("shadow"), "of the node").unwrap();
        let named = path(&format!("{ID}-json.log"));
        symlink(path("shadow"), &named).unwrap();
        let log = path("0.log");
        let link_to = |target: &Path| {
            let _ = fs::remove_file(&log);
            symlink(target, &log).unwrap();
            opened(&log)
        };
        assert_eq!(link_to(&own), Ok("own".to_owned()));
        // The engine's directory may be a link of the node's.
        symlink(path("engine"), path("data")).unwrap();
        let through = path("data").join(ID).join(format!("{ID}-json.log"));
        assert_eq!(link_to(&through), Ok("own".to_owned()));
        for target in [
            path("shadow"),
            named,
            path("engine").join(ID),
            PathBuf::from(format!("engine/{ID}/{ID}-json.log")),
            PathBuf::from("/"),
        ] {
            assert!(link_to(&target).is_err(), "{}", target.display());
        }
        let error = link_to(&path("shadow")).unwrap_err();
        assert!(error.contains("the container's own log"), "{error}");
        // No id is no beginning of every name.
        link_to(&own).unwrap();
        assert!(open_log(&log, "").is_err());
    }

    #[test]
    fn directories_of_the_node_may_be_links_and_those_of_a_pod_may_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("disk/web/app")).unwrap();
        fs::write(path("disk/web/app/0.log"), "a line").unwrap();
        symlink(path("disk"), path("pods")).unwrap();
        assert_eq!(opened(&path("pods/web/app/0.log")), Ok("a line".to_owned()));

        fs::create_dir_all(path("disk/third")).unwrap();
        symlink(path("disk/web"), path("disk/other")).unwrap();
        symlink(path("disk/web/app"), path("disk/third/app")).unwrap();
        for (log, link) in [
            ("pods/other/app/0.log", "other"),
            ("pods/third/app/0.log", "app"),
        ] {
            let error = opened(&path(log)).unwrap_err();
            assert_eq!(error, format!("{link} is a link, which is not followed"));
        }
        let error = open_log(&path("pods/none/app/0.log"), ID).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        for none in ["0.log", "/", "", "/a/../0.log", "/.."] {
            assert!(open_log(Path::new(none), ID).is_err(), "{none}");
        }
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &log, FileType::Fifo, mode, 0).unwrap();
        assert!(opened(&log).is_err());
    }
}
