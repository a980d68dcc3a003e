//! The symlink from CRI's log path to the engine's log file.

use std::{io, path::Path};

use super::log_location::LogLocation;
use crate::Error;

/// Links `log_path` to `engine_log`, replacing any symlink there.
///
/// # Errors
/// [`Error::File`] naming the symlink.
pub async fn create(log_path: &Path, engine_log: &Path) -> Result<(), Error> {
    let (log, target) = (log_path.to_owned(), engine_log.to_owned());
    let made = blocking(move || LogLocation::make(&log)?.link(&target)).await;
    made.map_err(failed("link the log", log_path))
}

/// Removes the symlink; anything else is left in place.
///
/// # Errors
/// [`Error::File`] naming the symlink.
pub async fn remove(log_path: &Path) -> Result<(), Error> {
    let log = log_path.to_owned();
    let removed = blocking(move || match LogLocation::open(&log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        location => location?.remove_link(),
    });
    let removed = removed.await;
    removed.map_err(failed("remove the link to the log", log_path))
}

async fn blocking(work: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other).flatten()
}

fn failed(action: &'static str, log_path: &Path) -> impl Fn(io::Error) -> Error {
    let path = log_path.to_owned();
    move |source| Error::File {
        action,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_link_is_made_replaced_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("pod/app/0.log");
        create(&link, Path::new("/first")).await.unwrap();
        create(&link, Path::new("/second")).await.unwrap();
        assert_eq!(std::fs::read_link(&link).unwrap(), Path::new("/second"));
        remove(&link).await.unwrap();
        remove(&link).await.unwrap();
        assert!(!link.exists());
    }

    #[tokio::test]
    async fn a_file_is_not_taken_for_a_link() {
        let file = tempfile::NamedTempFile::new().unwrap();
        remove(file.path()).await.unwrap();
        assert!(file.path().exists());
    }
}
