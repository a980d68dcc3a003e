//! Certificates with their keys on disk, as upstream keeps them:
//! `<prefix>-<time>.pem` for each, and the link `<prefix>-current.pem` to the newest.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use kubelet_host::{clock, files};

use super::pair::{Pair, PairError};

/// Why a pair cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file has no pair.
    #[error("{}: {source}", path.display())]
    Pair {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: PairError,
    },
    /// Somebody put a file where the link belongs.
    #[error("{} must be a symbolic link", .0.display())]
    NotALink(PathBuf),
}

/// The pairs of one kind. All calls block on files.
#[derive(Clone, Debug)]
pub struct PairStore {
    dir: PathBuf,
    prefix: &'static str,
}

impl PairStore {
    /// The pairs `prefix` in a directory, which need not be there yet.
    pub fn new(dir: &Path, prefix: &'static str) -> Self {
        Self {
            dir: dir.to_owned(),
            prefix,
        }
    }

    /// The link to the newest pair.
    pub fn current_path(&self) -> PathBuf {
        self.path("current")
    }

    fn path(&self, qualifier: &str) -> PathBuf {
        self.dir.join(format!("{}-{qualifier}.pem", self.prefix))
    }

    /// The newest pair; `None` when there is none.
    ///
    /// # Errors
    /// It cannot be read, or is none.
    pub fn current(&self) -> Result<Option<Pair>, StoreError> {
        let path = self.current_path();
        self.recover()?;
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(StoreError::Io { path, source }),
        };
        match Pair::parse(&text, &text) {
            Ok(pair) => Ok(Some(pair)),
            Err(source) => Err(StoreError::Pair { path, source }),
        }
    }

    /// Ends an exchange of the link that upstream's kubelet was in the middle of.
    fn recover(&self) -> Result<(), StoreError> {
        let (current, updated) = (self.current_path(), self.path("updated"));
        if fs::symlink_metadata(&current).is_ok() || !is_link(&updated)? {
            return Ok(());
        }
        fs::rename(&updated, &current).map_err(|source| StoreError::Io {
            path: updated,
            source,
        })
    }

    /// Writes a pair and makes it the newest. Until the link is exchanged, in one step,
    /// the last one is.
    ///
    /// # Errors
    /// It cannot be written; the last one stays.
    pub fn update(&self, pair: &Pair) -> Result<(), StoreError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { path, source }
        };
        let now = clock::now().strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let path = self.path(&now);
        files::replace_now(&path, pair.pem().as_bytes(), 0o600).map_err(io(&path))?;

        let (current, updated) = (self.current_path(), self.path("updated"));
        if current.exists() && !is_link(&current)? {
            return Err(StoreError::NotALink(current));
        }
        if is_link(&updated)? {
            fs::remove_file(&updated).map_err(io(&updated))?;
        }
        std::os::unix::fs::symlink(&path, &updated).map_err(io(&updated))?;
        fs::rename(&updated, &current).map_err(io(&current))?;
        // The new name is to outlast a power cut.
        let dir = fs::File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.map_err(io(&self.dir))
    }
}

/// Whether there is a link; what is no link is an error.
fn is_link(path: &Path) -> Result<bool, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() => Ok(true),
        Ok(_) => Err(StoreError::NotALink(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(StoreError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}
