//! The files that the engine logs a container to: `<id>-json.log`, and what it rotated,
//! `<id>-json.log.1` and on. Each is told by its inode, as its name moves on.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What is read at once.
const CHUNK: usize = 128 * 1024;
/// Of the beginning of a file, what tells it from a later one with the same inode.
const BEGINNING: usize = 256;

/// A place in the engine's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcePosition {
    inode: u64,
    /// The file's first bytes: how many, and their SHA-256.
    beginning: (usize, String),
    /// Where the first line begins that has not been taken, in bytes.
    offset: u64,
}

/// A reader of the engine's files that follows their rotation.
#[derive(Debug)]
pub struct EngineFile {
    path: PathBuf,
    file: File,
    inode: u64,
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
            for (_, file) in &files {
                let metadata = fs::metadata(file)?;
                if metadata.ino() != position.inode || metadata.len() < position.offset {
                    continue;
                }
                let opened = File::open(file)?;
                if beginning(&opened, position.beginning.0)? == position.beginning {
                    return Ok(Self {
                        path: path.to_owned(),
                        inode: opened.metadata()?.ino(),
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
            inode: file.metadata()?.ino(),
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
            inode: self.inode,
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
        buffer.resize(held + CHUNK, 0);
        let read = self
            .file
            .read_at(&mut buffer[held..], self.offset + held as u64);
        buffer.truncate(held + *read.as_ref().unwrap_or(&0));
        read
    }

    /// Goes on by `bytes`, which were taken.
    pub fn take(&mut self, bytes: usize) {
        self.offset += bytes as u64;
    }

    /// Whether the engine has begun another file, and so writes no more to this one.
    pub fn is_rotated(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() != self.inode)
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
        let own = files.iter().position(|(inode, _)| *inode == self.inode);
        let next = match own {
            Some(0) => return Ok(true),
            Some(index) => index - 1,
            None => files.len() - 1,
        };
        let (inode, path) = &files[next];
        let file = File::open(path)?;
        if file.metadata()?.ino() != *inode {
            return Err(io::Error::other("the engine has just rotated it"));
        }
        self.file = file;
        self.inode = *inode;
        self.offset = 0;
        Ok(own.is_some())
    }
}

/// The files that there are, newest first, with their inodes. The engine may be renaming
/// them: they are looked at until two looks see the same.
fn files(path: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let look = || {
        let older = (1..).map(|n| PathBuf::from(format!("{}.{n}", path.display())));
        std::iter::once(path.to_owned())
            .chain(older)
            .map_while(|path| Some((fs::metadata(&path).ok()?.ino(), path)))
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
