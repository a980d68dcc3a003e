//! Single file system calls, made on a thread where they block no task.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::Path,
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
    let dir = path.parent().unwrap_or_else(|| Path::new("/"));
    let mut dirs = fs::DirBuilder::new();
    dirs.recursive(true).mode(0o755);
    dirs.create(dir)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = dir.join(format!(".{name}.tmp"));
    // A temporary file left by another write has its own mode, and may be open elsewhere.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(mode)
        .open(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    fs::File::open(dir)?.sync_all()
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
}
