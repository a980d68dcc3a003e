//! The engine's log files of a container: `<id>-json.log`, and the rotated `<id>-json.log.1` and so
//! on. Files are identified by inode, because rotation changes their names.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The maximum number of bytes per read.
const CHUNK: usize = 128 * 1024;
/// The number of converted files that are kept for other readers.
const KEPT: usize = 3;
/// The length of a file's beginning that distinguishes it from a later file with the same inode.
const BEGINNING: usize = 256;

/// Identifies a file regardless of its name. The inode of a removed file may be reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    inode: u64,
    /// The creation time, in nanoseconds since 1970; not available on every file system.
    #[serde(default)]
    born: Option<u64>,
}

/// A position in the engine's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FilePosition {
    #[serde(flatten)]
    file: Identity,
    /// The file's first bytes: their number and SHA-256.
    beginning: (usize, String),
    /// The byte offset of the first line that has not been converted.
    offset: u64,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        let born = metadata.created().ok();
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Self {
            inode: metadata.ino(),
            born: born.and_then(|born| u64::try_from(born.as_nanos()).ok()),
        }
    }

    /// Whether `file` may be the file with this saved identity. Earlier versions did not save the
    /// creation time.
    fn may_be(&self, file: &Self) -> bool {
        self.inode == file.inode && (self.born.is_none() || self.born == file.born)
    }
}

/// A reader of the engine's files that follows their rotation.
#[derive(Debug)]
pub(super) struct EngineFile {
    path: PathBuf,
    file: File,
    identity: Identity,
    offset: u64,
    /// Whether lines were lost because the engine removed a file before it was read.
    pub lost: bool,
}

impl EngineFile {
    /// Opens at `position`, or at the oldest available line.
    ///
    /// # Errors
    /// The file does not exist or cannot be read.
    pub(super) fn open(path: &Path, position: Option<&FilePosition>) -> io::Result<Self> {
        let files = files(path)?;
        let mut lost = false;
        if let Some(position) = position {
            for (_, file) in files.iter().filter(|(file, _)| position.file.may_be(file)) {
                let opened = File::open(file)?;
                let metadata = opened.metadata()?;
                let identity = Identity::of(&metadata);
                if position.file.may_be(&identity)
                    && metadata.len() >= position.offset
                    && beginning(&opened, position.beginning.0)? == position.beginning
                {
                    return Ok(Self {
                        path: path.to_owned(),
                        identity,
                        file: opened,
                        offset: position.offset,
                        lost,
                    });
                }
            }
            lost = true;
        }
        let (_, oldest) = files
            .last()
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        let file = File::open(oldest)?;
        Ok(Self {
            path: path.to_owned(),
            identity: Identity::of(&file.metadata()?),
            file,
            offset: 0,
            lost,
        })
    }

    /// The current position.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn position(&self) -> io::Result<FilePosition> {
        let most = BEGINNING.min(usize::try_from(self.offset).unwrap_or(BEGINNING));
        Ok(FilePosition {
            file: self.identity,
            beginning: beginning(&self.file, most)?,
            offset: self.offset,
        })
    }

    /// Appends to `buffer` the bytes that follow it in the file; returns 0 at the end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let held = buffer.len();
        let from = self.offset + held as u64;
        // Every reading thread keeps its buffer, so allocate no more than needed.
        let rest = self.file.metadata()?.len().saturating_sub(from);
        let length = usize::try_from(rest).map_or(CHUNK, |rest| rest.min(CHUNK));
        buffer.resize(held + length, 0);
        let read = self.file.read_at(&mut buffer[held..], from);
        buffer.truncate(held + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Advances by `bytes`, which have been converted.
    pub(super) fn take(&mut self, bytes: usize) {
        self.offset += bytes as u64;
    }

    /// Whether the engine has started another file, so that it no longer writes to this one.
    pub(super) fn is_rotated(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() != self.identity.inode)
    }

    /// Whether the file has become shorter, for example by a truncation.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub(super) fn is_truncated(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() < self.offset)
    }

    /// Restarts at the file's beginning, after a truncation.
    pub(super) fn rewind(&mut self) {
        self.offset = 0;
    }

    /// Advances to the file that the engine started after this one. Returns whether no file in
    /// between was missed.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    pub(super) fn next_file(&mut self) -> io::Result<bool> {
        let files = files(&self.path)?;
        let own = files.iter().position(|(file, _)| *file == self.identity);
        let next = match own {
            Some(0) => return Ok(true),
            Some(index) => index - 1,
            None => files.len() - 1,
        };
        let (identity, path) = &files[next];
        let file = File::open(path)?;
        if Identity::of(&file.metadata()?) != *identity {
            return Err(io::Error::other("the engine has just rotated the file"));
        }
        self.file = file;
        self.identity = *identity;
        self.offset = 0;
        Ok(own.is_some())
    }
}

/// Removes the oldest files that have been converted completely: the shim's log is on disk up to
/// `taken`. The newest are kept for other readers of the engine's log; the engine tolerates missing
/// files.
///
/// # Errors
/// A file cannot be examined or removed.
pub(super) fn trim(path: &Path, taken: &FilePosition) -> io::Result<()> {
    let files = files(path)?;
    // Without a creation time, another file may have the same inode.
    let is_own = |file: &Identity| file.born.is_some() && *file == taken.file;
    let Some(own) = files.iter().position(|(file, _)| is_own(file)) else {
        return Ok(());
    };
    // The engine may be rotating, in which case each name refers to the next newer file.
    let kept = KEPT.max(own + 2);
    for (_, file) in files.iter().skip(kept).rev() {
        fs::remove_file(file)?;
    }
    Ok(())
}

/// The bytes on disk of the files that are older than those that are kept: the shim has not
/// converted them, or has done so a moment ago.
pub(crate) fn backlog(path: &Path) -> u64 {
    let older = (KEPT..).map(|n| format!("{}.{n}", path.display()));
    let found = older.map_while(|path| fs::metadata(path).ok());
    found.map(|file| file.blocks() * 512).sum()
}

/// The existing files, newest first. The engine may be renaming them, so the list is read until two
/// reads agree.
fn files(path: &Path) -> io::Result<Vec<(Identity, PathBuf)>> {
    let look = || {
        let older = (1..).map(|n| PathBuf::from(format!("{}.{n}", path.display())));
        std::iter::once(path.to_owned())
            .chain(older)
            .map_while(|path| Some((Identity::of(&fs::metadata(&path).ok()?), path)))
            .collect::<Vec<_>>()
    };
    const LOOKS: usize = 100;
    let mut before = look();
    for _ in 0..LOOKS {
        let now = look();
        if now == before && !now.is_empty() {
            return Ok(now);
        }
        before = now;
    }
    Err(io::ErrorKind::NotFound.into())
}

fn beginning(file: &File, length: usize) -> io::Result<(usize, String)> {
    let mut bytes = vec![0; length];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => bytes.clear(),
        other => other?,
    }
    Ok((length, format!("{:x}", Sha256::digest(&bytes))))
}
