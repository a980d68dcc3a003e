//! The CRI log file of a container.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{cri, place::Place};

/// What of the end of a file is searched for its last line.
const TAIL: u64 = 256 * 1024;

/// A place in a container's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPosition {
    inode: u64,
    size: u64,
}

/// A log that is appended to.
#[derive(Debug)]
pub struct LogFile {
    file: Arc<File>,
    inode: u64,
    size: u64,
}

impl LogFile {
    /// Opens the log at `path`, made with its directory if it is missing; a link that was
    /// there, as to the engine's own log, gives way.
    ///
    /// # Errors
    /// It cannot be opened or made.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = Place::make(path)?.append()?;
        let metadata = file.metadata()?;
        Ok(Self {
            inode: metadata.ino(),
            size: metadata.len(),
            file: Arc::new(file),
        })
    }

    /// Where it ends.
    pub fn position(&self) -> LogPosition {
        LogPosition {
            inode: self.inode,
            size: self.size,
        }
    }

    /// Appends whole lines.
    ///
    /// # Errors
    /// The system's; part of `lines` may have been written.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        (&*self.file).write_all(lines)?;
        self.size += lines.len() as u64;
        Ok(())
    }

    /// The file, for the task that syncs it to disk.
    pub fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// How many bytes were written after `position` was saved: to this log, which may be
    /// the one of `position`, and to that one, which may have been renamed since.
    pub fn written_since(&self, path: &Path, position: LogPosition) -> u64 {
        if self.inode == position.inode {
            return self.size.saturating_sub(position.size);
        }
        let place = Place::open(path).ok();
        let renamed = place.and_then(|place| place.renamed(position.inode));
        let before = renamed.map_or(0, |size| size.saturating_sub(position.size));
        before + self.size
    }

    /// Removes a line that was not finished, and returns the time of the last one that was.
    ///
    /// # Errors
    /// The system's.
    pub fn mend(&mut self) -> io::Result<Option<jiff::Timestamp>> {
        let from = self.size.saturating_sub(TAIL);
        let mut tail = Vec::new();
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut tail)?;
        let Some(end) = tail.iter().rposition(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let whole = from + end as u64 + 1;
        if whole < self.size {
            self.file.set_len(whole)?;
            self.size = whole;
        }
        let last = tail[..end].rsplit(|byte| *byte == b'\n').next();
        Ok(last.and_then(|line| cri::time(&String::from_utf8_lossy(line))))
    }
}

/// Where a container's log is, and where the engine logs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The engine's file; empty when it has none.
    pub engine_log: PathBuf,
    /// The container's log, as CRI has it.
    pub log: PathBuf,
}

impl Paths {
    /// Whether the engine's file is, or will be, where it can be seen from here: the engine
    /// may be on another machine, or have other mounts.
    pub fn are_visible(&self) -> bool {
        self.engine_log.parent().is_some_and(Path::is_dir)
    }
}
