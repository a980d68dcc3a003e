//! The rotated log files of a container: their names, compression and removal. Names and order are
//! upstream's, so that either kubelet continues where the other stopped.

use std::{
    ffi::{OsStr, OsString},
    io::{self, Write as _},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use rustix::fs::{FileType, Mode, fstat};

use super::log_path::LogPath;

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

/// The name of a log rotated at this time.
pub(super) fn rotated_name(log: &OsStr, now: Timestamp) -> OsString {
    with_suffix(log, &now.strftime(".%Y%m%d-%H%M%S").to_string())
}

/// Makes room for one more rotated file, so that `max_files` remain including it and the current
/// one, and compresses the others.
///
/// # Errors
/// A file cannot be read, written or removed.
pub(super) fn make_room(log: &LogPath, max_files: usize) -> io::Result<()> {
    let mut used = Vec::new();
    // Other file types, such as links, are not rotated logs.
    let all = rotated_files(log, FileType::is_file)?;
    for name in &all {
        if is_used(name, &all) {
            used.push(name);
        } else {
            log.remove(name)?;
        }
    }
    // The oldest first, because readers are at the newer ones.
    let kept = max_files.saturating_sub(2);
    let (old, kept) = used.split_at(used.len().saturating_sub(kept));
    for name in old {
        log.remove(name)?;
    }
    for name in kept.iter().filter(|name| !ends_with(name, COMPRESSED)) {
        compress(log, name)?;
    }
    Ok(())
}

/// Removes a container's log with its rotated files.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_logs(log: &Path) -> io::Result<()> {
    let log = match LogPath::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        log => log?,
    };
    for name in rotated_files(&log, |kind| !kind.is_dir())? {
        log.remove(&name)?;
    }
    log.remove(log.name())
}

/// The files named `<log>.*`, oldest first.
fn rotated_files(log: &LogPath, is_wanted: impl Fn(FileType) -> bool) -> io::Result<Vec<OsString>> {
    log.names(&with_suffix(log.name(), "."), is_wanted)
}

/// What is unfinished, or is there compressed as well, was left by an end in the
/// middle.
fn is_used(name: &OsStr, all: &[OsString]) -> bool {
    !ends_with(name, UNFINISHED)
        && (ends_with(name, COMPRESSED) || !all.contains(&with_suffix(name, COMPRESSED)))
}

fn compress(log: &LogPath, name: &OsStr) -> io::Result<()> {
    let mut rotated = log.read(name)?;
    let mode = Mode::from_raw_mode(fstat(&rotated)?.st_mode);
    let unfinished = with_suffix(name, UNFINISHED);
    let file = log.create(&unfinished, mode)?;
    let compressed = (|| {
        let mut encoder = GzEncoder::new(file, Compression::default());
        io::copy(&mut rotated, &mut encoder)?;
        encoder.finish()?.flush()?;
        log.rename(&unfinished, &with_suffix(name, COMPRESSED))
    })();
    if compressed.is_err() {
        // The next rotation removes what is left.
        let _ = log.remove(&unfinished);
    }
    compressed?;
    log.remove(name)
}

fn ends_with(name: &OsStr, suffix: &str) -> bool {
    name.as_encoded_bytes().ends_with(suffix.as_bytes())
}

fn with_suffix(name: &OsStr, suffix: &str) -> OsString {
    let mut name = name.to_owned();
    name.push(suffix);
    name
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        io::Read as _,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use flate2::read::GzDecoder;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn room_is_made_and_what_stays_is_compressed() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "0.log",
            "0.log.20260101-000000.gz",
            "0.log.20260102-000000.gz",
            "0.log.20260103-000000",
            "0.log.20260103-000000.gz",
            "0.log.20260104-000000.tmp",
            "0.log.20260105-000000",
            "10.log",
            "10.log.20260101-000000",
        ] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(dir.path().join("0.log.20260105-000000"), mode).unwrap();
        let log = LogPath::open(&dir.path().join("0.log")).unwrap();
        make_room(&log, 5).unwrap();
        assert_eq!(
            names(dir.path()),
            [
                "0.log",
                "0.log.20260102-000000.gz",
                "0.log.20260103-000000.gz",
                "0.log.20260105-000000.gz",
                "10.log",
                "10.log.20260101-000000",
            ]
        );
        let file = File::open(dir.path().join("0.log.20260105-000000.gz")).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
        let mut text = String::new();
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "0.log.20260105-000000");

        make_room(&log, 2).unwrap();
        assert_eq!(
            names(dir.path()),
            ["0.log", "10.log", "10.log.20260101-000000"]
        );
        remove_logs(&dir.path().join("10.log")).unwrap();
        assert_eq!(names(dir.path()), ["0.log"]);
        remove_logs(&dir.path().join("gone/0.log")).unwrap();
    }

    #[test]
    fn links_are_neither_compressed_nor_written_through_and_go_with_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("shadow"), "of the node").unwrap();
        for name in [
            "0.log",
            "0.log.20260101-000000",
            "0.log.20260102-000000",
            "0.log.20260102-000000.tmp",
            "0.log.20260103-000000.gz",
        ] {
            symlink(path("shadow"), path(name)).unwrap();
        }
        fs::remove_file(path("0.log.20260102-000000")).unwrap();
        fs::write(path("0.log.20260102-000000"), "a line").unwrap();
        let log = LogPath::open(&path("0.log")).unwrap();
        // The name for what is not finished yet is taken.
        assert!(make_room(&log, 5).is_err());
        fs::remove_file(path("0.log.20260102-000000.tmp")).unwrap();
        make_room(&log, 5).unwrap();
        assert_eq!(
            names(dir.path()),
            [
                "0.log",
                "0.log.20260101-000000",
                "0.log.20260102-000000.gz",
                "0.log.20260103-000000.gz",
                "shadow",
            ]
        );
        remove_logs(&path("0.log")).unwrap();
        assert_eq!(names(dir.path()), ["shadow"]);
        assert_eq!(fs::read_to_string(path("shadow")).unwrap(), "of the node");
    }

    #[test]
    fn names_sort_by_time_and_take_nobodys_place() {
        let dir = tempfile::tempdir().unwrap();
        let log = LogPath::open(&dir.path().join("0.log")).unwrap();
        let name = rotated_name(log.name(), "2026-01-02T03:04:05Z".parse().unwrap());
        assert_eq!(name, "0.log.20260102-030405");
        fs::write(dir.path().join("0.log"), "new").unwrap();
        fs::write(dir.path().join(&name), "old").unwrap();
        assert!(log.rename(log.name(), &name).is_err());
        let old = fs::read_to_string(dir.path().join(&name)).unwrap();
        assert_eq!(old, "old");
    }
}
