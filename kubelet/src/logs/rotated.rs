//! The log files of one container that are not written to any more: how they are
//! named, compressed and removed. Names and order are upstream's, so that either
//! kubelet goes on with what the other left.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use rustix::fs::{CWD, RenameFlags, renameat_with};

const COMPRESSED: &str = ".gz";
const UNFINISHED: &str = ".tmp";

/// The name to which a log is renamed at a time.
pub(super) fn rotated_name(log: &Path, now: Timestamp) -> PathBuf {
    with_suffix(log, &now.strftime(".%Y%m%d-%H%M%S").to_string())
}

/// Renames a file, unless the other name is taken.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

/// Makes room for one more rotated file, such that `max_files` are there with it
/// and the one that is written to, and compresses the others.
///
/// # Errors
/// A file cannot be read, written or removed.
pub(super) fn make_room(log: &Path, max_files: usize) -> io::Result<()> {
    let mut used = Vec::new();
    let all = rotated_files(log)?;
    for path in &all {
        if is_used(path, &all) {
            used.push(path);
        } else {
            fs::remove_file(path)?;
        }
    }
    // The oldest first: whoever reads is at the newer ones.
    let kept = max_files.saturating_sub(2);
    let (old, kept) = used.split_at(used.len().saturating_sub(kept));
    for path in old {
        fs::remove_file(path)?;
    }
    for path in kept.iter().filter(|path| !ends_with(path, COMPRESSED)) {
        compress(path)?;
    }
    Ok(())
}

/// Removes a container's log with all that was rotated of it.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_logs(log: &Path) -> io::Result<()> {
    let gone_is_fine = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    for path in gone_is_empty(rotated_files(log))? {
        gone_is_fine(fs::remove_file(path))?;
    }
    gone_is_fine(fs::remove_file(log))
}

fn gone_is_empty(files: io::Result<Vec<PathBuf>>) -> io::Result<Vec<PathBuf>> {
    match files {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        files => files,
    }
}

/// The files named `<log>.*`, the oldest first.
fn rotated_files(log: &Path) -> io::Result<Vec<PathBuf>> {
    let (Some(dir), Some(name)) = (log.parent(), log.file_name()) else {
        return Ok(Vec::new());
    };
    let mut prefix = name.as_encoded_bytes().to_vec();
    prefix.push(b'.');
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(&prefix) {
            files.push(entry.path());
        }
    }
    files.sort();
    Ok(files)
}

/// What is unfinished, or is there compressed as well, was left by an end in the
/// middle.
fn is_used(path: &Path, all: &[PathBuf]) -> bool {
    !ends_with(path, UNFINISHED)
        && (ends_with(path, COMPRESSED) || !all.contains(&with_suffix(path, COMPRESSED)))
}

fn compress(path: &Path) -> io::Result<()> {
    let mut log = File::open(path)?;
    let mode = log.metadata()?.permissions().mode();
    let unfinished = with_suffix(path, UNFINISHED);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&unfinished)?;
    let compressed = (|| {
        let mut encoder = GzEncoder::new(file, Compression::default());
        io::copy(&mut log, &mut encoder)?;
        encoder.finish()?.flush()?;
        fs::rename(&unfinished, with_suffix(path, COMPRESSED))
    })();
    if compressed.is_err() {
        // The next rotation removes what is left now.
        let _ = fs::remove_file(&unfinished);
    }
    compressed?;
    fs::remove_file(path)
}

fn ends_with(path: &Path, suffix: &str) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .ends_with(suffix.as_bytes())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
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
        let log = dir.path().join("0.log");
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
    fn names_sort_by_time_and_take_nobodys_place() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("0.log");
        let name = rotated_name(&log, "2026-01-02T03:04:05Z".parse().unwrap());
        assert!(name.ends_with("0.log.20260102-030405"));
        fs::write(&log, "new").unwrap();
        fs::write(&name, "old").unwrap();
        assert!(rename(&log, &name).is_err());
        assert_eq!(fs::read_to_string(&name).unwrap(), "old");
    }
}
