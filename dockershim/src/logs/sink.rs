//! The log of a container while it is written, independent of the source of its entries.
//!
//! The entries depend only on the engine's output. Lines that were written but whose position was
//! not saved before a crash are produced again, and skipped by their length. The log is never
//! truncated or rewritten while others read it.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::log_file::{LogFile, LogPosition};

/// Why a log is behind.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {source}")]
pub struct LogError {
    action: &'static str,
    path: String,
    source: io::Error,
}

/// A log that entries are appended to.
#[derive(Debug)]
pub(super) struct Sink {
    path: PathBuf,
    file: LogFile,
    /// The number of bytes that are in the log already and will be produced again.
    skip: u64,
    /// Entries up to this time are in the log already; used only without a position.
    after: Option<jiff::Timestamp>,
    /// Bytes written to the log since it was opened.
    pub written: u64,
}

impl Sink {
    /// Opens the log at `path`. The entries to append are those after `position`, or without one,
    /// all that the engine still has.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(super) fn open(path: &Path, position: Option<LogPosition>) -> Result<Self, LogError> {
        let mut file = LogFile::open(path).map_err(failed("open the log", path))?;
        let (mut skip, mut after) = (0, None);
        match position {
            Some(position) => skip = file.written_since(path, position),
            None => after = file.mend().map_err(failed("read the log", path))?,
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            skip,
            after,
            written: 0,
        })
    }

    /// Handles entries that do not continue from the position: from now on, entries already in the
    /// log are recognised by their timestamps.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn begin_anew(&mut self) -> Result<(), LogError> {
        self.skip = 0;
        let last = self.file.mend();
        self.after = last.map_err(failed("read the log", &self.path))?;
        Ok(())
    }

    /// Whether the log lacks an entry with this timestamp.
    pub(super) fn wants(&self, time: &str) -> bool {
        let Some(after) = self.after else {
            return true;
        };
        let time = time.parse::<jiff::Timestamp>();
        time.map_or(true, |time| time > after)
    }

    /// Appends lines, except for those that are in the log already.
    ///
    /// # Errors
    /// The system's; some of the lines may have been written.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<(), LogError> {
        let known = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(lines.len());
        self.skip -= known as u64;
        let new = &lines[known..];
        if new.is_empty() {
            return Ok(());
        }
        self.written += new.len() as u64;
        self.file
            .append(new)
            .map_err(failed("write the log", &self.path))
    }

    /// Whether the log has none of the entries to come.
    pub(super) fn is_exact(&self) -> bool {
        self.skip == 0 && self.after.is_none()
    }

    /// Whether all entries after one with the timestamp `last` are new, so that a position is
    /// exact.
    pub(super) fn has_caught_up(&self, last: Option<jiff::Timestamp>) -> bool {
        self.skip == 0 && self.after.is_none_or(|after| last > Some(after))
    }

    /// Ends the recovery: the engine has returned everything that the log may already have.
    pub(super) fn settle(&mut self) {
        if self.skip > 0 {
            tracing::warn!(
                log = %self.path.display(),
                bytes = self.skip,
                "the log has more output than the engine returned"
            );
            self.skip = 0;
        }
        self.after = None;
    }

    /// The log's end.
    pub(super) fn position(&self) -> LogPosition {
        self.file.position()
    }

    /// The file, for the task that syncs it to disk.
    pub(super) fn file(&self) -> Arc<File> {
        self.file.file()
    }

    /// Continues in a new file at the log's path after the old one was renamed. Returns the old
    /// file.
    ///
    /// # Errors
    /// The new file cannot be opened.
    pub(super) fn reopen(&mut self) -> Result<Arc<File>, LogError> {
        let file = LogFile::open(&self.path);
        let file = file.map_err(failed("open the log", &self.path))?;
        Ok(std::mem::replace(&mut self.file, file).file())
    }
}

pub(super) fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> LogError {
    let path = path.display().to_string();
    move |source| LogError {
        action,
        path: path.clone(),
        source,
    }
}
