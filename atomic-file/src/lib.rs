//! Replaces whole files. After a crash of the process, a path holds either its old contents or the
//! new. The contents are written to a temporary file beside the path, which is then renamed.

#![forbid(unsafe_code)]

use std::{
    ffi::{OsStr, OsString},
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The prefix and the suffix of the names of temporary files.
const PREFIX: &str = ".";
const SUFFIX: &str = ".tmp";
/// The longest name of a file, in bytes (`NAME_MAX`).
const NAME_MAX: usize = 255;

/// What survives a loss of power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The file: it and its directory are synced to disk.
    Synced,
    /// Possibly neither the old contents nor the new.
    Unsynced,
}

/// Replaces the contents of `path`. The new file has permissions `mode`. Missing directories are
/// created. Blocks.
///
/// # Errors
/// Any I/O error. The old contents are kept, and no temporary file is left; only if the sync of the
/// directory fails, the new contents are in place, but may be lost with power.
pub fn replace(path: &Path, contents: &[u8], mode: u32, durability: Durability) -> io::Result<()> {
    replace_with(path, mode, durability, |mut file| file.write_all(contents))
}

/// [`replace`] with the contents that `write` writes.
///
/// # Errors
/// As [`replace`], and those of `write`.
pub fn replace_with(
    path: &Path,
    mode: u32,
    durability: Durability,
    write: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    let mut dirs = fs::DirBuilder::new();
    dirs.recursive(true).mode(0o755);
    dirs.create(dir)?;
    let temporary = temporary(path);
    // A temporary file left by another write has its own mode, and may be open elsewhere.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let replaced =
        write_new(&temporary, mode, durability, write).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        // Frees the space of a full disk. Temporary files are never read.
        let _ = fs::remove_file(&temporary);
    }
    replaced?;
    match durability {
        Durability::Synced => fs::File::open(dir)?.sync_all(),
        Durability::Unsynced => Ok(()),
    }
}

fn write_new(
    path: &Path,
    mode: u32,
    durability: Durability,
    write: impl FnOnce(&fs::File) -> io::Result<()>,
) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let file = options.create_new(true).write(true).mode(mode).open(path)?;
    write(&file)?;
    match durability {
        Durability::Synced => file.sync_all(),
        Durability::Unsynced => Ok(()),
    }
}

/// The temporary file of a replacement of `path`. Paths do not share one, so that they can be
/// replaced at the same time.
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    if PREFIX.len() + name.len() + SUFFIX.len() <= NAME_MAX {
        let mut temporary = OsString::from(PREFIX);
        temporary.push(name);
        temporary.push(SUFFIX);
        return path.with_file_name(temporary);
    }
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    path.with_file_name(format!("{PREFIX}{:016x}{SUFFIX}", hasher.finish()))
}

/// Whether a file of this name is the temporary one of a replacement that was interrupted.
pub fn is_temporary(name: impl AsRef<OsStr>) -> bool {
    let name = name.as_ref().as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect()
    }

    #[test]
    fn a_leftover_temporary_file_is_not_reused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, left) = (dir.path().join("key"), dir.path().join(".key.tmp"));
        fs::write(&left, "").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        // A process that has it open must not read the new contents.
        let mut open = fs::File::open(&left).unwrap();
        replace(&path, b"secret", 0o600, Durability::Synced).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(io::read_to_string(&mut open).unwrap(), "");

        let elsewhere = dir.path().join("elsewhere");
        symlink(&elsewhere, &left).unwrap();
        replace(&path, b"another", 0o600, Durability::Synced).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_replacement_that_fails_leaves_the_old_contents_and_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let (taken, file) = (dir.path().join("taken"), dir.path().join("file"));
        fs::create_dir(&taken).unwrap();
        fs::write(&file, "old").unwrap();
        for durability in [Durability::Synced, Durability::Unsynced] {
            replace(&taken, b"new", 0o600, durability).unwrap_err();
            let full = |mut file: &fs::File| {
                file.write_all(b"ne")?;
                Err(io::ErrorKind::StorageFull.into())
            };
            let error = replace_with(&file, 0o600, durability, full).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull);
            let mut left = names(dir.path());
            left.sort();
            assert_eq!(left, ["file", "taken"]);
            assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        }
    }

    #[test]
    fn paths_of_any_length_have_temporary_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        for length in [
            1,
            49,
            50,
            NAME_MAX - 6,
            NAME_MAX - 5,
            NAME_MAX - 4,
            NAME_MAX - 1,
        ] {
            let [a, b] = ["a", "b"].map(|end| dir.path().join("é".repeat(length / 2) + end));
            assert_ne!(temporary(&a), temporary(&b), "{length}");
            let name = temporary(&a).file_name().unwrap().to_owned();
            assert!(is_temporary(name));
            replace(&a, b"new", 0o600, Durability::Synced).unwrap();
            assert_eq!(fs::read_to_string(&a).unwrap(), "new");
        }
        assert!(!is_temporary("key") && !is_temporary("key.tmp") && !is_temporary(".key"));
    }
}
