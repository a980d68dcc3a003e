//! Certificates with their keys on disk, in upstream's layout: `<prefix>-<time>.pem` for each, and
//! the symbolic link `<prefix>-current.pem` to the newest.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use atomic_file::Durability;
use kubelet_host::clock;

use super::pair::{Pair, PairError};

/// Why a certificate cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file system operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file does not contain a certificate with its key.
    #[error("{}: {source}", path.display())]
    Pair {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: PairError,
    },
    /// There is a file in place of the symbolic link.
    #[error("{} must be a symbolic link", .0.display())]
    NotALink(PathBuf),
}

/// The certificates of one prefix. All calls block on files.
#[derive(Clone, Debug)]
pub struct PairStore {
    dir: PathBuf,
    prefix: &'static str,
}

impl PairStore {
    /// The certificates with `prefix` in a directory, which need not exist yet.
    pub fn new(dir: &Path, prefix: &'static str) -> Self {
        Self {
            dir: dir.to_owned(),
            prefix,
        }
    }

    /// The symbolic link to the newest certificate.
    pub fn current_path(&self) -> PathBuf {
        self.path("current")
    }

    fn path(&self, qualifier: &str) -> PathBuf {
        self.dir.join(format!("{}-{qualifier}.pem", self.prefix))
    }

    /// The newest certificate; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read or is invalid.
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

    /// Completes the replacement of the link if upstream's kubelet was interrupted in it.
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

    /// Writes a certificate and makes it the newest, by atomically replacing the link.
    ///
    /// # Errors
    /// It cannot be written; the link still points to the previous one.
    pub fn update(&self, pair: &Pair) -> Result<(), StoreError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Io { path, source }
        };
        let now = clock::now().strftime("%Y-%m-%d-%H-%M-%S").to_string();
        let path = self.path(&now);
        atomic_file::replace(&path, pair.pem().as_bytes(), 0o600, Durability::Synced)
            .map_err(io(&path))?;

        let (current, updated) = (self.current_path(), self.path("updated"));
        if current.exists() && !is_link(&current)? {
            return Err(StoreError::NotALink(current));
        }
        if is_link(&updated)? {
            fs::remove_file(&updated).map_err(io(&updated))?;
        }
        std::os::unix::fs::symlink(&path, &updated).map_err(io(&updated))?;
        fs::rename(&updated, &current).map_err(io(&current))?;
        // The new name must survive a power failure.
        let dir = fs::File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.map_err(io(&self.dir))
    }
}

/// Whether there is a symbolic link; any other file is an error.
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
