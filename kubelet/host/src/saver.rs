//! Files that follow a state in memory.

use std::{io, path::PathBuf, sync::Arc};

use atomic_file::Durability;
use tokio::sync::Mutex;

use crate::repeatable::blocking;

/// The mode of the files.
const MODE: u32 = 0o600;

/// A state at a time, as files.
#[derive(Debug)]
pub struct Snapshot {
    /// The version of the state.
    pub version: u64,
    /// The files with their contents.
    pub files: Vec<(PathBuf, String)>,
}

/// Writes a state durably to its files: each version once, and one after the other. A write goes on if
/// its caller stops waiting for it.
#[derive(Debug, Default)]
pub struct Saver {
    /// The version in the files. Taken while they are written.
    saved: Arc<Mutex<u64>>,
}

impl Saver {
    /// For files that have the version `saved`.
    pub fn new(saved: u64) -> Self {
        Self {
            saved: Arc::new(Mutex::new(saved)),
        }
    }

    /// Writes the state, unless `snapshot` returns none: it is called with the version in the files.
    ///
    /// # Errors
    /// `snapshot` fails, or a file cannot be written; the error has its path.
    pub async fn save(
        &self,
        snapshot: impl FnOnce(u64) -> io::Result<Option<Snapshot>>,
    ) -> io::Result<()> {
        let mut saved = Arc::clone(&self.saved).lock_owned().await;
        let Some(Snapshot { version, files }) = snapshot(*saved)? else {
            return Ok(());
        };
        let write = move || -> io::Result<()> {
            for (path, content) in files {
                let written =
                    atomic_file::replace(&path, content.as_bytes(), MODE, Durability::Synced);
                written.map_err(|error| {
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                })?;
            }
            *saved = version;
            Ok(())
        };
        blocking(write).await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn each_version_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let saver = Saver::new(1);
        let save = |version, content: &str| {
            let files = vec![(path.clone(), content.to_owned())];
            saver.save(move |saved| Ok((saved != version).then_some(Snapshot { version, files })))
        };
        save(1, "1").await.unwrap();
        assert!(!path.exists());
        save(2, "2").await.unwrap();
        save(2, "again").await.unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "2");
    }

    #[tokio::test]
    async fn what_was_not_written_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let parent = dir.path().join("file");
        fs::write(&parent, "").unwrap();
        let path = parent.join("state");
        let saver = Saver::new(0);
        let save = || {
            let files = vec![(path.clone(), String::new())];
            saver.save(|saved| {
                assert_eq!(saved, 0);
                Ok(Some(Snapshot { version: 1, files }))
            })
        };
        let error = save().await.unwrap_err().to_string();
        assert!(error.contains("file/state: "), "{error}");
        fs::remove_file(parent).unwrap();
        save().await.unwrap();
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_write_goes_on_without_its_caller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let saver = Saver::new(0);
        let files = vec![(path.clone(), "1".to_owned())];
        {
            let save = saver.save(|_| Ok(Some(Snapshot { version: 1, files })));
            let mut save = std::pin::pin!(save);
            assert!(futures::poll!(&mut save).is_pending());
        }
        // The next one waits for it.
        saver
            .save(|saved| {
                assert_eq!(saved, 1);
                Ok(None)
            })
            .await
            .unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1");
    }
}
