//! A link from where CRI expects a container's log to the file that the engine writes.

use std::{io, path::Path};

use tokio::fs;

use crate::Error;

/// Links `log_path` to `engine_log`, in place of whatever link was there.
///
/// # Errors
/// [`Error::File`] naming the link.
pub async fn create(log_path: &Path, engine_log: &Path) -> Result<(), Error> {
    let failed = |action| {
        move |source| Error::File {
            action,
            path: log_path.to_owned(),
            source,
        }
    };
    if let Some(directory) = log_path.parent() {
        fs::create_dir_all(directory)
            .await
            .map_err(failed("make the directory of the log"))?;
    }
    remove(log_path).await?;
    fs::symlink(engine_log, log_path)
        .await
        .map_err(failed("link the log"))
}

/// Removes the link; what is no link is left alone.
///
/// # Errors
/// [`Error::File`] naming the link.
pub async fn remove(log_path: &Path) -> Result<(), Error> {
    let result = match fs::symlink_metadata(log_path).await {
        Ok(found) if found.is_symlink() => fs::remove_file(log_path).await,
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::File {
            action: "remove the link to the log",
            path: log_path.to_owned(),
            source: error,
        }),
        _ => Ok(()),
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
