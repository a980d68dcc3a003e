//! The files of a checkpoint, one for each entry. Everything here blocks.
//!
//! A file is a line and what it is of. The line says that, and has a checksum over all the
//! rest: `kubelet-checkpoint v1 pods default web plain sha256:<hex>`. What is secret is
//! encrypted, for its own place alone; with a key, all else has in the place of the checksum
//! what only who has the key can make: `hmac-sha256:<base64>`.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tracing::error;

use super::{
    entry::{Entry, Kind},
    sealed::{SealingKey, Unsealable},
};

/// How a file begins.
const FORMAT: &str = "kubelet-checkpoint v1";
const PLAIN: &str = "plain";
const SEALED: &str = "aes-256-gcm";
/// What the line ends with.
const SUM: &str = "sha256";
const MAC: &str = "hmac-sha256";
/// Of a directory that others than its owner may write to.
const OTHERS_WRITE: u32 = 0o022;
/// What is being written; no object has such a name.
const NEW: &str = ".new";
/// Bytes of one file at most. No object of the API server is as large.
const FILE_LIMIT: u64 = 4 << 20;
/// Bytes of all files at most.
const LIMIT: u64 = 256 << 20;

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not what was written.
    #[error("{} is corrupt: {why}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The file is not for this key, or not what was written.
    #[error(
        "{} cannot be decrypted: it was encrypted with another key than that of \
         --bootstrap-checkpoint-key, or somebody changed it",
        .0.display()
    )]
    Sealed(PathBuf),
    /// The file was written with a key.
    #[error("{} was written with a key, and there is no --bootstrap-checkpoint-key", .0.display())]
    NoKey(PathBuf),
    /// The file is not of who has the key, or not what was written.
    #[error(
        "{} cannot be trusted: it was written without the key of --bootstrap-checkpoint-key or \
         with another one, or it is damaged, or somebody changed it",
        .0.display()
    )]
    Untrusted(PathBuf),
    /// Others could have written what is in the directory.
    #[error(
        "{path}: {why}, who could have this node run anything: `chown {user} {path}`, \
         `chmod go-w {path}`, and remove what is in it if that is not this node's",
        path = path.display()
    )]
    Exposed {
        /// The directory.
        path: PathBuf,
        /// To whom.
        why: String,
        /// Who is to own it.
        user: u32,
    },
    /// The file cannot be encrypted.
    #[error("{}: {source}", path.display())]
    Unsealable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: Unsealable,
    },
    /// There is no room for the file.
    #[error(
        "{}: there is no room for {size} bytes: a file may have {file_limit}, and all together {limit}",
        path.display(), file_limit = FILE_LIMIT
    )]
    Full {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        size: u64,
        /// What all files may have together, in bytes.
        limit: u64,
    },
}

/// The files of a checkpoint.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    key: Option<SealingKey>,
    limit: u64,
    /// Bytes of every file. Held while one is written or removed.
    sizes: Mutex<BTreeMap<Entry, u64>>,
}

impl Store {
    /// The files of a directory, which is made if it is not there. What is secret is kept
    /// only with a `key`. What is odd in the directory is said in the log and passed over.
    ///
    /// # Errors
    /// The directory cannot be made or read, or is not this user's alone.
    pub fn open(dir: &Path, key: Option<SealingKey>) -> Result<Self, StoreError> {
        make_dir(dir).map_err(at(dir))?;
        check_owner(dir)?;
        fs::read_dir(dir).map_err(at(dir))?;
        let mut sizes = BTreeMap::new();
        for kind in Kind::ALL {
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

    /// Whether what is of that kind is kept.
    pub const fn keeps(&self, kind: Kind) -> bool {
        !kind.is_secret() || self.key.is_some()
    }

    /// Everything that there is a file of, good or not.
    pub fn entries(&self) -> Vec<Entry> {
        self.sizes.lock().keys().cloned().collect()
    }

    /// What was written of an entry; `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or is not what was written.
    pub fn read(&self, entry: &Entry) -> Result<Option<Vec<u8>>, StoreError> {
        let path = entry.path(&self.dir);
        let corrupt = |why: &str| StoreError::Corrupt {
            path: path.clone(),
            why: why.to_owned(),
        };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() > FILE_LIMIT => {
                return Err(corrupt("it is larger than any that was written"));
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
        let (line, body) = bytes.split_at(end.ok_or_else(|| corrupt("its first line is cut"))?);
        let body = body.get(1..).unwrap_or_default();
        let line = str::from_utf8(line).map_err(|_| corrupt("its first line is no text"))?;
        let without = || corrupt("its first line has no checksum");
        let (said, mark) = line.rsplit_once(' ').ok_or_else(without)?;
        let (kind_of_mark, mark) = mark.split_once(':').ok_or_else(without)?;
        match (kind_of_mark, &self.key) {
            (SUM, _) if mark != checksum(said, body) => {
                return Err(corrupt("its checksum is another"));
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
            .ok_or_else(|| corrupt("it is of something else, or of another version"))?;
        match (form, entry.kind().is_secret()) {
            (PLAIN, false) => Ok(Some(body.to_vec())),
            (SEALED, true) => match &self.key {
                None => Err(StoreError::NoKey(path)),
                Some(key) => match key.open(said.as_bytes(), body) {
                    Some(text) => Ok(Some(text)),
                    None => Err(StoreError::Sealed(path)),
                },
            },
            _ => Err(corrupt("it is not written as such a file is")),
        }
    }

    /// The object that was written of an entry; `None` if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, or has no such object.
    pub fn read_object<K: DeserializeOwned>(&self, entry: &Entry) -> Result<Option<K>, StoreError> {
        let Some(text) = self.read(entry)? else {
            return Ok(None);
        };
        match serde_json::from_slice(&text) {
            Ok(object) => Ok(Some(object)),
            Err(error) => Err(StoreError::Corrupt {
                path: entry.path(&self.dir),
                why: error.to_string(),
            }),
        }
    }

    /// Writes an entry whole or not at all, so that it outlasts a power cut; nothing, if it
    /// is there already.
    ///
    /// # Errors
    /// It cannot be written, or would take more room than there is; what was there stays.
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
    /// It cannot be removed.
    pub fn remove(&self, entry: &Entry) -> Result<(), StoreError> {
        let mut sizes = self.sizes.lock();
        let path = entry.path(&self.dir);
        match fs::remove_file(&path) {
            Ok(()) => {
                if let Some(dir) = path.parent() {
                    sync_dir(dir).map_err(at(dir))?;
                    if entry.kind().is_namespaced() {
                        // Fails as long as there is something else of the namespace.
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

/// How the first line of an entry's file begins.
fn beginning(entry: &Entry) -> String {
    format!("{FORMAT} {} ", entry.words())
}

/// What the mark of a file is of.
fn marked(said: &str, body: &[u8]) -> Vec<u8> {
    [said.as_bytes(), b"\n", body].concat()
}

fn checksum(said: &str, body: &[u8]) -> String {
    format!("{:x}", Sha256::digest(marked(said, body)))
}

/// Whether nobody else could have put something into a directory.
fn check_owner(dir: &Path) -> Result<(), StoreError> {
    let metadata = fs::metadata(dir).map_err(at(dir))?;
    let user = rustix::process::geteuid().as_raw();
    let why = if metadata.uid() != user {
        format!("it belongs to user {}", metadata.uid())
    } else if metadata.mode() & OTHERS_WRITE != 0 {
        format!(
            "its mode {:o} lets others write to it",
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
    error!(path = %path.display(), %error, "passing over a part of the checkpoint");
}

/// Names and metadata of what is in a directory, if it is there.
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

/// Adds the files of a directory to `sizes`. What was not written to its end goes.
fn list(dir: &Path, kind: Kind, namespace: &str, sizes: &mut BTreeMap<Entry, u64>) {
    for (name, metadata) in names(dir) {
        if name == NEW {
            let path = dir.join(NEW);
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

/// Puts a file in the place of what is there, in one step.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    make_dir(dir)?;
    let new = dir.join(NEW);
    let written = write_new(&new, bytes).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        // What is left of it is never read.
        let _ = fs::remove_file(&new);
    }
    written?;
    sync_dir(dir)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut options = OpenOptions::new();
    options.create_new(true).write(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes a directory and those above it, for its owner alone.
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

/// What was renamed or removed in it stays so after a power cut.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests;
