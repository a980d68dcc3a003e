//! Single file system calls, made on a thread where they block no task.

use std::{fs, io, path::Path};

use atomic_file::Durability;

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

/// The text of a file that people write. What is not UTF-8 is replaced, such as a comment in another
/// encoding.
///
/// # Errors
/// As [`fs::read`].
pub async fn read_lossy(path: &Path) -> io::Result<String> {
    let path = path.to_owned();
    let bytes = run(move || fs::read(path)).await?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// [`fs::write`].
pub async fn write(path: &Path, contents: impl Into<Vec<u8>>) -> io::Result<()> {
    let (path, contents) = (path.to_owned(), contents.into());
    run(move || fs::write(path, contents)).await
}

/// [`atomic_file::replace`], durably, on a thread where it blocks no task.
pub async fn replace(path: &Path, contents: impl Into<Vec<u8>>, mode: u32) -> io::Result<()> {
    let (path, contents) = (path.to_owned(), contents.into());
    run(move || atomic_file::replace(&path, &contents, mode, Durability::Synced)).await
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
