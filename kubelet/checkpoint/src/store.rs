//! The files of a checkpoint, one per entry. All calls block.
//!
//! A file is a line with the entry's identity, then the content. The line ends with a checksum over
//! the rest of the file: `kubelet-checkpoint v1 pods default web plain sha256:<hex>`. Secrets are
//! encrypted for their own entry alone. With a key, all other files have a MAC, which requires the
//! key, instead of the checksum: `hmac-sha256:<base64>`.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use atomic_file::Durability;
use kubelet_pod_spec::json;
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tracing::error;

use super::{
    entry::{Entry, EntryKind},
    sealed::{NoRandomness, SealingKey},
};

/// The first words of a file.
const FORMAT: &str = "kubelet-checkpoint v1";
const PLAIN: &str = "plain";
const SEALED: &str = "aes-256-gcm";
/// Algorithms of the checksum or MAC at the end of the line.
const SUM: &str = "sha256";
const MAC: &str = "hmac-sha256";
/// Mode bits of a directory that group or others can write to.
const OTHERS_WRITE: u32 = 0o022;
/// Maximum size of a file in bytes. No object of the API server is as large.
const FILE_LIMIT: u64 = 4 << 20;
/// Maximum size of all files in bytes.
const LIMIT: u64 = 256 << 20;

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file system operation failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file is corrupt.
    #[error("{} is corrupt: {why}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The file was encrypted with another key, or modified.
    #[error(
        "cannot decrypt {}: it was encrypted with a different key than \
         --bootstrap-checkpoint-key, or has been modified",
        .0.display()
    )]
    Sealed(PathBuf),
    /// Reading or writing the file requires a key, and there is none.
    #[error("{} was written with a key, but --bootstrap-checkpoint-key is not set", .0.display())]
    NoKey(PathBuf),
    /// The MAC of the file is missing or wrong.
    #[error(
        "{} cannot be trusted: it was written without the key of --bootstrap-checkpoint-key or \
         with a different one, is damaged, or has been modified",
        .0.display()
    )]
    Untrusted(PathBuf),
    /// Other users could have written to the directory.
    #[error(
        "{path}: {why}, so others could make this node run anything: run `chown {user} {path}` \
         and `chmod go-w {path}`, and remove its contents if they are not from this node",
        path = path.display()
    )]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// The owner or mode that allows it.
        why: String,
        /// The user that must own it.
        user: u32,
    },
    /// The file cannot be encrypted.
    #[error("{}: {source}", path.display())]
    Unsealable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: NoRandomness,
    },
    /// The file exceeds a size limit.
    #[error(
        "{}: no room for {size} bytes: the limit is {file_limit} bytes per file and {limit} in \
         total",
        path.display(), file_limit = FILE_LIMIT
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// The maximum size of all files in bytes.
        limit: u64,
    },
}

/// The files of a checkpoint.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    key: Option<SealingKey>,
    limit: u64,
    /// Sizes of all files in bytes. Locked while a file is written or removed.
    sizes: Mutex<BTreeMap<Entry, u64>>,
}

impl Store {
    /// Opens a directory, which is created if missing. Secrets are kept only with a `key`.
    /// Unexpected or unreadable parts of the directory are skipped.
    ///
    /// # Errors
    /// The directory cannot be created or read, or other users can write to it.
    pub fn open(dir: &Path, key: Option<SealingKey>) -> Result<Self, StoreError> {
        make_dir(dir).map_err(at(dir))?;
        check_owner(dir)?;
        fs::read_dir(dir).map_err(at(dir))?;
        let mut sizes = BTreeMap::new();
        for kind in EntryKind::ALL {
            let kind_dir = dir.join(kind.directory());
            if !kind.is_namespaced() {
                list(&kind_dir, kind, "", &mut sizes);
                continue;
            }
            for (namespace, metadata) in names(&kind_dir) {
                if metadata.is_dir() {
                    list(&kind_dir.join(&namespace), kind, &namespace, &mut sizes);
                }
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            key,
            limit: LIMIT,
            sizes: Mutex::new(sizes),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether entries of this kind are kept.
    pub const fn keeps(&self, kind: EntryKind) -> bool {
        !kind.is_secret() || self.key.is_some()
    }

    /// All entries with a file, valid or not.
    pub fn entries(&self) -> Vec<Entry> {
        self.sizes.lock().keys().cloned().collect()
    }

    /// Reads the content of an entry; `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn read(&self, entry: &Entry) -> Result<Option<Vec<u8>>, StoreError> {
        let path = entry.path(&self.dir);
        let corrupt = |why: &str| StoreError::Corrupt {
            path: path.clone(),
            why: why.to_owned(),
        };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > FILE_LIMIT => {
                return Err(corrupt("it exceeds the maximum file size"));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&path)(error)),
            Ok(_) | Err(_) => {}
        }
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(at(&path)(error)),
        };
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let (line, body) =
            bytes.split_at(end.ok_or_else(|| corrupt("its first line is incomplete"))?);
        let body = body.get(1..).unwrap_or_default();
        let line = str::from_utf8(line).map_err(|_| corrupt("its first line is not UTF-8"))?;
        let without = || corrupt("its first line has no checksum");
        let (said, mark) = line.rsplit_once(' ').ok_or_else(without)?;
        let (kind_of_mark, mark) = mark.split_once(':').ok_or_else(without)?;
        match (kind_of_mark, &self.key) {
            (SUM, _) if mark != checksum(said, body) => {
                return Err(corrupt("its checksum does not match"));
            }
            (SUM, Some(_)) if !entry.kind().is_secret() => return Err(StoreError::Untrusted(path)),
            (SUM, _) => {}
            (MAC, None) => return Err(StoreError::NoKey(path)),
            (MAC, Some(key)) if !key.is_mac(mark, &marked(said, body)) => {
                return Err(StoreError::Untrusted(path));
            }
            (MAC, Some(_)) => {}
            _ => return Err(without()),
        }
        let form = said
            .strip_prefix(&*beginning(entry))
            .ok_or_else(|| corrupt("it belongs to another object, or has another version"))?;
        match (form, entry.kind().is_secret()) {
            (PLAIN, false) => Ok(Some(body.to_vec())),
            (SEALED, true) => match &self.key {
                None => Err(StoreError::NoKey(path)),
                Some(key) => match key.open(said.as_bytes(), body) {
                    Some(text) => Ok(Some(text)),
                    None => Err(StoreError::Sealed(path)),
                },
            },
            _ => Err(corrupt("its encoding is wrong for this kind of object")),
        }
    }

    /// Reads the object of an entry; `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub fn read_object<K: DeserializeOwned>(&self, entry: &Entry) -> Result<Option<K>, StoreError> {
        self.read_by(entry, |text| json::from_slice(text))
    }

    /// As [`Self::read_object`], with another decoder.
    pub fn read_by<K>(
        &self,
        entry: &Entry,
        decode: impl FnOnce(&[u8]) -> serde_json::Result<K>,
    ) -> Result<Option<K>, StoreError> {
        let Some(text) = self.read(entry)? else {
            return Ok(None);
        };
        match decode(&text) {
            Ok(object) => Ok(Some(object)),
            Err(error) => Err(StoreError::Corrupt {
                path: entry.path(&self.dir),
                why: error.to_string(),
            }),
        }
    }

    /// Writes an entry atomically, and so that it survives a power failure. Does nothing if the
    /// content is unchanged.
    ///
    /// # Errors
    /// The file cannot be written or exceeds a size limit; the previous file stays.
    pub fn write(&self, entry: &Entry, text: &[u8]) -> Result<(), StoreError> {
        let mut sizes = self.sizes.lock();
        if matches!(self.read(entry), Ok(Some(written)) if written == text) {
            return Ok(());
        }
        let path = entry.path(&self.dir);
        let form = match entry.kind().is_secret() {
            true => SEALED,
            false => PLAIN,
        };
        let said = format!("{}{form}", beginning(entry));
        let body = match (&self.key, entry.kind().is_secret()) {
            (_, false) => text.to_vec(),
            (None, true) => return Err(StoreError::NoKey(path)),
            (Some(key), true) => {
                let sealed = key.seal(said.as_bytes(), text);
                sealed.map_err(|source| StoreError::Unsealable {
                    path: path.clone(),
                    source,
                })?
            }
        };
        let mark = match &self.key {
            Some(key) if !entry.kind().is_secret() => {
                format!("{MAC}:{}", key.mac(&marked(&said, &body)))
            }
            _ => format!("{SUM}:{}", checksum(&said, &body)),
        };
        let mut bytes = format!("{said} {mark}\n").into_bytes();
        bytes.extend(body);
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let others: u64 = sizes
            .iter()
            .filter(|(other, _)| *other != entry)
            .map(|(_, size)| *size)
            .sum();
        let limit = self.limit;
        if size > FILE_LIMIT || others.saturating_add(size) > limit {
            return Err(StoreError::Full { path, size, limit });
        }
        replace(&path, &bytes).map_err(at(&path))?;
        sizes.insert(entry.clone(), size);
        Ok(())
    }

    /// Removes the file of an entry, if there is one.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn remove(&self, entry: &Entry) -> Result<(), StoreError> {
        let mut sizes = self.sizes.lock();
        let path = entry.path(&self.dir);
        match fs::remove_file(&path) {
            Ok(()) => {
                if let Some(dir) = path.parent() {
                    sync_dir(dir).map_err(at(dir))?;
                    if entry.kind().is_namespaced() {
                        // Fails if the namespace still has other files.
                        let _ = fs::remove_dir(dir);
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(at(&path)(error)),
        }
        sizes.remove(entry);
        Ok(())
    }
}

fn at(path: &Path) -> impl Fn(io::Error) -> StoreError + use<> {
    let path = path.to_owned();
    move |source| StoreError::Io {
        path: path.clone(),
        source,
    }
}

/// The first line of an entry's file, up to the form of the content.
fn beginning(entry: &Entry) -> String {
    format!("{FORMAT} {} ", entry.words())
}

/// The input of a file's checksum or MAC.
fn marked(said: &str, body: &[u8]) -> Vec<u8> {
    [said.as_bytes(), b"\n", body].concat()
}

fn checksum(said: &str, body: &[u8]) -> String {
    format!("{:x}", Sha256::digest(marked(said, body)))
}

/// Checks that no other user could have written to a directory.
fn check_owner(dir: &Path) -> Result<(), StoreError> {
    let metadata = fs::metadata(dir).map_err(at(dir))?;
    let user = rustix::process::geteuid().as_raw();
    let why = if metadata.uid() != user {
        format!("it is owned by user {}", metadata.uid())
    } else if metadata.mode() & OTHERS_WRITE != 0 {
        format!(
            "its mode {:o} lets other users write to it",
            metadata.mode() & 0o7777
        )
    } else {
        return Ok(());
    };
    Err(StoreError::Exposed {
        path: dir.to_owned(),
        why,
        user,
    })
}

fn passed_over(path: &Path, error: &io::Error) {
    error!(path = %path.display(), %error, "skipping a part of the checkpoint");
}

/// Names and metadata of the files in a directory; none if it does not exist.
fn names(dir: &Path) -> Vec<(String, fs::Metadata)> {
    let read = match fs::read_dir(dir) {
        Ok(read) => read,
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                passed_over(dir, &error);
            }
            return Vec::new();
        }
    };
    let mut names = Vec::new();
    for found in read {
        match found.and_then(|found| Ok((found.file_name(), found.metadata()?))) {
            Ok((name, metadata)) => {
                names.extend(name.into_string().ok().map(|name| (name, metadata)));
            }
            Err(error) => passed_over(dir, &error),
        }
    }
    names
}

/// Adds the files of a directory to `sizes`, and removes an incomplete one.
fn list(dir: &Path, kind: EntryKind, namespace: &str, sizes: &mut BTreeMap<Entry, u64>) {
    for (name, metadata) in names(dir) {
        if atomic_file::is_temporary(&name) {
            let path = dir.join(&name);
            if let Err(error) = fs::remove_file(&path) {
                passed_over(&path, &error);
            }
        } else if let Some(entry) = Entry::new(kind, namespace, &name)
            && metadata.is_file()
        {
            sizes.insert(entry, metadata.len());
        }
    }
}

/// Atomically replaces a file.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    make_dir(dir)?;
    atomic_file::replace(path, bytes, 0o600, Durability::Synced)
}

/// Creates a directory and its parents, for the owner alone.
fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => dir.parent().map_or(Ok(()), sync_dir),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => match dir.parent() {
            Some(parent) => {
                make_dir(parent)?;
                make_dir(dir)
            }
            None => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Makes renames and removals in a directory survive a power failure.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests;
