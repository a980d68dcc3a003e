//! The CRI log file of a container.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{cri, log_location::LogLocation};

/// How much of the end of a file is searched for its last line, in bytes.
const TAIL: u64 = 256 * 1024;

/// A position in a container's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogPosition {
    inode: u64,
    size: u64,
}

impl LogPosition {
    /// Whether nothing precedes it in its file.
    pub(super) fn is_empty(&self) -> bool {
        self.size == 0
    }
}

/// A log file opened for appending.
#[derive(Debug)]
pub(super) struct LogFile {
    file: Arc<File>,
    inode: u64,
    size: u64,
}

impl LogFile {
    /// Opens the log at `path`, and creates it and its directory if missing; replaces a symlink,
    /// such as one to the engine's own log.
    ///
    /// # Errors
    /// It cannot be opened or created.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = LogLocation::make(path)?.append()?;
        let metadata = file.metadata()?;
        Ok(Self {
            inode: metadata.ino(),
            size: metadata.len(),
            file: Arc::new(file),
        })
    }

    /// The file's end.
    pub(super) fn position(&self) -> LogPosition {
        LogPosition {
            inode: self.inode,
            size: self.size,
        }
    }

    /// Appends complete lines.
    ///
    /// # Errors
    /// The system's; part of `lines` may have been written.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        (&*self.file).write_all(lines)?;
        self.size += lines.len() as u64;
        Ok(())
    }

    /// The file, for the task that syncs it to disk.
    pub(super) fn file(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// The number of bytes written after `position` was saved: to this file, and to the file of
    /// `position` if that is another one, which may have been renamed since.
    pub(super) fn written_since(&self, path: &Path, position: LogPosition) -> u64 {
        if self.inode == position.inode {
            return self.size.saturating_sub(position.size);
        }
        let location = LogLocation::open(path).ok();
        let renamed = location.and_then(|location| location.renamed(position.inode));
        let before = renamed.map_or(0, |size| size.saturating_sub(position.size));
        before + self.size
    }

    /// Removes an incomplete last line, and returns the timestamp of the last complete one.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn mend(&mut self) -> io::Result<Option<jiff::Timestamp>> {
        let from = self.size.saturating_sub(TAIL);
        let mut tail = Vec::new();
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_end(&mut tail)?;
        let end = tail.iter().rposition(|byte| *byte == b'\n');
        let whole = match end {
            Some(end) => from + end as u64 + 1,
            // Not a log: no line is that long.
            None if from > 0 => return Ok(None),
            None => 0,
        };
        if whole < self.size {
            self.file.set_len(whole)?;
            self.size = whole;
        }
        let last = tail[..end.unwrap_or(0)]
            .rsplit(|byte| *byte == b'\n')
            .next();
        Ok(last.and_then(|line| cri::time(&String::from_utf8_lossy(line))))
    }
}

/// The paths of a container's log and of the engine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The engine's file; empty if there is none.
    pub engine_log: PathBuf,
    /// The container's CRI log.
    pub log: PathBuf,
}

impl Paths {
    /// Whether the engine's file is accessible, now or later: the engine may run on another
    /// machine, or in another mount namespace.
    pub fn are_visible(&self) -> bool {
        self.engine_log.parent().is_some_and(Path::is_dir)
    }
}
