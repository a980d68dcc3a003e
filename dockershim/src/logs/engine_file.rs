//! The files that the engine logs a container to: `<id>-json.log`, and what it rotated,
//! `<id>-json.log.1` and on. Each is told by its inode, as its name moves on.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes that are read at once, at most.
const CHUNK: usize = 128 * 1024;
/// Files that are kept for other readers when all was taken.
const KEPT: usize = 3;
/// Of the beginning of a file, what tells it from a later one with the same inode.
const BEGINNING: usize = 256;

/// Identifies a file whatever its name is. The system reuses the inode of a file that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    inode: u64,
    /// When it was made, in nanoseconds since 1970; not every file system says.
    #[serde(default)]
    born: Option<u64>,
}

/// A place in the engine's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePosition {
    #[serde(flatten)]
    file: Identity,
    /// The file's first bytes: how many, and their SHA-256.
    beginning: (usize, String),
    /// Where the first line begins that has not been taken, in bytes.
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

    /// Whether this, as noted down, may be `file`. Earlier versions did not note down when it was
    /// made.
    fn may_be(&self, file: &Self) -> bool {
        self.inode == file.inode && (self.born.is_none() || self.born == file.born)
    }
}

/// A reader of the engine's files that follows their rotation.
#[derive(Debug)]
pub struct EngineFile {
    path: PathBuf,
    file: File,
    identity: Identity,
    offset: u64,
    /// Lines that were lost because the engine removed a file before it was read.
    pub lost: bool,
}

impl EngineFile {
    /// Opens at `position`, or at the oldest line that there is.
    ///
    /// # Errors
    /// There is no file, or it cannot be read.
    pub fn open(path: &Path, position: Option<&SourcePosition>) -> io::Result<Self> {
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

    /// Where it is.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn position(&self) -> io::Result<SourcePosition> {
        let most = BEGINNING.min(usize::try_from(self.offset).unwrap_or(BEGINNING));
        Ok(SourcePosition {
            file: self.identity,
            beginning: beginning(&self.file, most)?,
            offset: self.offset,
        })
    }

    /// Appends to `buffer` what follows it in the file: 0 bytes at its end.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        let held = buffer.len();
        let from = self.offset + held as u64;
        // Each thread that reads has memory of its own, which it keeps: no more than is needed.
        let rest = self.file.metadata()?.len().saturating_sub(from);
        let length = usize::try_from(rest).map_or(CHUNK, |rest| rest.min(CHUNK));
        buffer.resize(held + length, 0);
        let read = self.file.read_at(&mut buffer[held..], from);
        buffer.truncate(held + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Goes on by `bytes`, which were taken.
    pub fn take(&mut self, bytes: usize) {
        self.offset += bytes as u64;
    }

    /// Whether the engine has begun another file, and so writes no more to this one.
    pub fn is_rotated(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() != self.identity.inode)
    }

    /// Whether the file became shorter under its reader, as by a truncation.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn is_truncated(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.len() < self.offset)
    }

    /// Begins the file anew, after a truncation.
    pub fn rewind(&mut self) {
        self.offset = 0;
    }

    /// Goes on to the file that the engine began after this one. Returns whether none in
    /// between was missed.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn next_file(&mut self) -> io::Result<bool> {
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
            return Err(io::Error::other("the engine has just rotated it"));
        }
        self.file = file;
        self.identity = *identity;
        self.offset = 0;
        Ok(own.is_some())
    }
}

/// Removes the oldest of the files that were taken completely: the shim's log has everything up to
/// `taken` on disk. The newest stay for other readers of the engine's log; the engine does not mind
/// missing files.
///
/// # Errors
/// A file cannot be looked at or removed.
pub fn trim(path: &Path, taken: &SourcePosition) -> io::Result<()> {
    let files = files(path)?;
    // Without a time of birth another file may have the inode by now.
    let is_own = |file: &Identity| file.born.is_some() && *file == taken.file;
    let Some(own) = files.iter().position(|(file, _)| is_own(file)) else {
        return Ok(());
    };
    // The engine may rotate now: each name then has the file of the name before it.
    let kept = KEPT.max(own + 2);
    for (_, file) in files.iter().skip(kept).rev() {
        fs::remove_file(file)?;
    }
    Ok(())
}

/// The files that there are, newest first. The engine may be renaming
/// them: they are looked at until two looks see the same.
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
