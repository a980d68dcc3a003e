//! Single file system calls, made on a thread where they block no task.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::repeatable::blocking;

async fn run<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    blocking(work).await.map_err(io::Error::other)?
}

/// [`fs::read_to_string`].
pub async fn read_to_string(path: &Path) -> io::Result<String> {
    let path = path.to_owned();
    run(move || fs::read_to_string(path)).await
}

/// [`fs::write`].
pub async fn write(path: &Path, contents: impl Into<Vec<u8>>) -> io::Result<()> {
    let (path, contents) = (path.to_owned(), contents.into());
    run(move || fs::write(path, contents)).await
}

/// [`replace_now`] on a thread where it blocks no task.
pub async fn replace(path: &Path, contents: impl Into<Vec<u8>>, mode: u32) -> io::Result<()> {
    let (path, contents) = (path.to_owned(), contents.into());
    run(move || replace_now(&path, &contents, mode)).await
}

/// Replaces a file atomically and durably: after a crash or a loss of power the path holds
/// either the old contents or the new. Missing directories are created.
pub fn replace_now(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    replace_with(path, contents, mode, Sync::Yes)
}

/// Replaces a file atomically: after a crash of this process the path holds either the old
/// contents or the new. After a loss of power it may hold neither. Missing directories are
/// created.
pub fn replace_unsynced_now(path: &Path, contents: &[u8], mode: u32) -> io::Result<()> {
    replace_with(path, contents, mode, Sync::No)
}

/// The temporary file of a replacement of `path`.
pub fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Shorter than the longest name that file systems take.
    let stem: String = name.chars().take(50).collect();
    path.with_file_name(format!(".{stem}.tmp"))
}

/// Whether a file of this name is the temporary one of a replacement that was interrupted.
pub fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".tmp")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sync {
    Yes,
    No,
}

fn replace_with(path: &Path, contents: &[u8], mode: u32, sync: Sync) -> io::Result<()> {
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
        write_new(&temporary, contents, mode, sync).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        // A full disk needs the room; what is left is never read.
        let _ = fs::remove_file(&temporary);
    }
    replaced?;
    match sync {
        Sync::Yes => fs::File::open(dir)?.sync_all(),
        Sync::No => Ok(()),
    }
}

fn write_new(path: &Path, contents: &[u8], mode: u32, sync: Sync) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.create_new(true).write(true).mode(mode).open(path)?;
    file.write_all(contents)?;
    match sync {
        Sync::Yes => file.sync_all(),
        Sync::No => Ok(()),
    }
}

/// [`fs::create_dir_all`].
pub async fn create_dir_all(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    run(move || fs::create_dir_all(path)).await
}

/// [`fs::remove_file`].
pub async fn remove_file(path: &Path) -> io::Result<()> {
    let path = path.to_owned();
    run(move || fs::remove_file(path)).await
}

/// [`fs::set_permissions`].
pub async fn set_permissions(path: &Path, permissions: fs::Permissions) -> io::Result<()> {
    let path = path.to_owned();
    run(move || fs::set_permissions(path, permissions)).await
}

/// The names in a directory, sorted.
pub async fn names(path: &Path) -> io::Result<Vec<String>> {
    let path = path.to_owned();
    run(move || {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        Ok(names)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_leftover_temporary_file_is_not_reused() {
        let dir = tempfile::tempdir().unwrap();
        let (path, left) = (dir.path().join("key"), dir.path().join(".key.tmp"));
        fs::write(&left, "").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        // A process that has it open must not read the new contents.
        let mut open = fs::File::open(&left).unwrap();
        replace_now(&path, b"secret", 0o600).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(io::read_to_string(&mut open).unwrap(), "");

        let elsewhere = dir.path().join("elsewhere");
        symlink(&elsewhere, &left).unwrap();
        replace_now(&path, b"another", 0o600).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "another");
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_replacement_that_fails_leaves_the_old_contents_and_no_temporary_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("taken");
        fs::create_dir(&path).unwrap();
        for replace in [replace_now, replace_unsynced_now] {
            replace(&path, b"new", 0o600).unwrap_err();
            let left = fs::read_dir(dir.path()).unwrap();
            let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["taken"]);
        }
        assert!(is_temporary(".taken.tmp") && !is_temporary("taken"));
        // As long as a name may be.
        let long = dir.path().join("x".repeat(255));
        replace_now(&long, b"new", 0o600).unwrap();
        assert_eq!(fs::read_to_string(long).unwrap(), "new");
    }
}
