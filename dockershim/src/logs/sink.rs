//! The log of a container while it is being written, wherever its entries come from.
//!
//! What comes is a function of what the engine has, so what a crash left written but not
//! noted down is made again and skipped by its length. The log is never cut or written
//! twice under its readers.

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
pub struct Sink {
    path: PathBuf,
    file: LogFile,
    /// Bytes that the log has already and that are made once more.
    skip: u64,
    /// Entries up to this time are in the log already; only where no position says it
    /// better.
    after: Option<jiff::Timestamp>,
    /// Bytes written to the log since it was opened.
    pub written: u64,
}

impl Sink {
    /// Opens the log at `path`; what comes is what came after `position`, or without one
    /// all that the engine still has.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub fn open(path: &Path, position: Option<LogPosition>) -> Result<Self, LogError> {
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

    /// What comes is not what came after a position, as that was thought: from now on
    /// entries are told by their time.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn begin_anew(&mut self) -> Result<(), LogError> {
        self.skip = 0;
        let last = self.file.mend();
        self.after = last.map_err(failed("read the log", &self.path))?;
        Ok(())
    }

    /// Whether the log lacks what was written at `time`.
    pub fn wants(&self, time: &str) -> bool {
        let Some(after) = self.after else {
            return true;
        };
        let time = time.parse::<jiff::Timestamp>();
        time.map_or(true, |time| time > after)
    }

    /// Appends lines, but for those that are made once more.
    ///
    /// # Errors
    /// The system's; part of them may have been written.
    pub fn append(&mut self, lines: &[u8]) -> Result<(), LogError> {
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

    /// Whether the log has nothing of what comes.
    pub fn is_exact(&self) -> bool {
        self.skip == 0 && self.after.is_none()
    }

    /// Whether what comes after an entry of the time `last` is new, so that a position says
    /// how far it has come.
    pub fn has_caught_up(&self, last: Option<jiff::Timestamp>) -> bool {
        self.skip == 0 && self.after.is_none_or(|after| last > Some(after))
    }

    /// The engine has given all that the log may have: from here on what comes is new.
    pub fn settle(&mut self) {
        if self.skip > 0 {
            tracing::warn!(log = %self.path.display(), bytes = self.skip, "the log has more than the engine gave");
            self.skip = 0;
        }
        self.after = None;
    }

    /// Where it ends.
    pub fn position(&self) -> LogPosition {
        self.file.position()
    }

    /// The file, for the task that syncs it to disk.
    pub fn file(&self) -> Arc<File> {
        self.file.file()
    }

    /// Goes on with a new file at the log's path, where the old one was renamed. Returns the
    /// old one.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn reopen(&mut self) -> Result<Arc<File>, LogError> {
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
