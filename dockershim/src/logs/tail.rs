//! Converts the engine's log of a container to CRI's, exactly once.
//!
//! The conversion is a function of the engine's bytes, so what a crash left written but
//! not noted down is made again from the last [`Position`] and skipped by its length. The
//! container's log is never cut or written twice under its readers.

use std::{io, path::Path};

use serde::{Deserialize, Serialize};

use super::{
    cri,
    engine_file::{EngineFile, SourcePosition},
    json_file,
    log_file::{LogFile, LogPosition, Paths},
};

/// A line of the engine's is at most six times its 16 KiB, and what goes with them.
const LONGEST_LINE: usize = 1024 * 1024;
/// What is converted in one go, about. A container that writes all the time is never at its
/// end, and must not keep its follower from everything else.
const PIECE: usize = 4 * 1024 * 1024;

/// How far the conversion has come: all before `source` is before `log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    source: SourcePosition,
    log: LogPosition,
    /// Whether the container has ended and all it wrote is in the log.
    pub complete: bool,
}

/// What a drain found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drained {
    /// Nothing that is new.
    Nothing,
    /// All that there was.
    All,
    /// A piece; there is more.
    Piece,
}

/// Why a conversion stopped.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {source}")]
pub struct TailError {
    action: &'static str,
    path: String,
    source: io::Error,
}

/// A conversion that is open.
#[derive(Debug)]
pub struct Tail {
    paths: Paths,
    source: EngineFile,
    log: LogFile,
    /// Bytes that the log has already and that are made once more.
    skip: u64,
    /// Entries up to this time are in the log already; only where no position says it
    /// better.
    after: Option<jiff::Timestamp>,
    /// Bytes written to the log since it was opened.
    pub written: u64,
    /// The engine's time of the last entry.
    pub last: Option<jiff::Timestamp>,
}

impl Tail {
    /// Goes on from `position`, or begins with the oldest line that there is.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(paths: &Paths, position: Option<&Position>) -> Result<Self, TailError> {
        let source = EngineFile::open(&paths.engine_log, position.map(|p| &p.source));
        let source = source.map_err(failed("open the engine's log", &paths.engine_log))?;
        let mut log = LogFile::open(&paths.log).map_err(failed("open the log", &paths.log))?;
        let (mut skip, mut after) = (0, None);
        match position {
            Some(position) if !source.lost => {
                skip = log.written_since(&paths.log, position.log);
            }
            _ => after = log.mend().map_err(failed("read the log", &paths.log))?,
        }
        if source.lost {
            tracing::warn!(log = %paths.log.display(), "lines are lost: the engine removed them before they were read");
        }
        Ok(Self {
            paths: paths.clone(),
            source,
            log,
            skip,
            after,
            written: 0,
            last: None,
        })
    }

    /// Where it begins, before the first drain; `None` where what the log has already is told
    /// by time alone.
    ///
    /// # Errors
    /// The engine's file cannot be read.
    pub fn beginning(&self) -> Result<Option<Position>, TailError> {
        let exact = self.skip == 0 && self.after.is_none();
        exact.then(|| self.position(false)).transpose()
    }

    /// Converts what there is, up to a piece of it.
    ///
    /// # Errors
    /// A file cannot be read or written; the conversion is to be opened again then, from
    /// the position that was had last.
    pub fn drain(&mut self) -> Result<Drained, TailError> {
        let Paths { engine_log, log } = self.paths.clone();
        let (mut buffer, mut lines) = (Vec::new(), Vec::new());
        let mut taken = 0;
        let unread = || failed("read the engine's log", &engine_log);
        loop {
            // Looked at before the end is seen: what comes to a file comes before the next.
            let rotated = self.source.is_rotated();
            let read = self.source.read(&mut buffer).map_err(unread())?;
            let whole = match buffer.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                // It ends nowhere: it is no log.
                None if buffer.len() > LONGEST_LINE => buffer.len(),
                None => 0,
            };
            if whole > 0 {
                taken += whole;
                lines.clear();
                self.convert(&buffer[..whole], &mut lines);
                self.append(&lines).map_err(failed("write the log", &log))?;
                self.source.take(whole);
                buffer.drain(..whole);
            }
            if read > 0 {
                if taken >= PIECE && self.has_caught_up() {
                    self.after = None;
                    return Ok(Drained::Piece);
                }
                continue;
            }
            if rotated {
                // A line that its file does not end was torn by a crash.
                buffer.clear();
                if !self.source.next_file().map_err(unread())? {
                    tracing::warn!(log = %log.display(), "lines are lost: the engine removed them before they were read");
                }
            } else if self.source.is_truncated().map_err(unread())? {
                buffer.clear();
                self.source.rewind();
            } else {
                break;
            }
        }
        if self.skip > 0 {
            tracing::warn!(log = %log.display(), bytes = self.skip, "the log has more than the engine gave");
            self.skip = 0;
        }
        // From here on what comes is new.
        self.after = None;
        Ok(match taken {
            0 => Drained::Nothing,
            _ => Drained::All,
        })
    }

    /// Whether what comes is new, so that a position says how far it has come.
    fn has_caught_up(&self) -> bool {
        self.skip == 0 && self.after.is_none_or(|after| self.last > Some(after))
    }

    fn convert(&mut self, bytes: &[u8], lines: &mut Vec<u8>) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(entry) = json_file::parse(line) else {
                tracing::debug!(log = %self.paths.log.display(), "a line of the engine's log is no entry");
                continue;
            };
            if let Some(after) = self.after
                && entry
                    .time
                    .parse()
                    .is_ok_and(|time: jiff::Timestamp| time <= after)
            {
                continue;
            }
            cri::append(lines, &entry.time, &entry.stream, entry.log.as_bytes());
        }
        let last = bytes.trim_ascii_end().rsplit(|byte| *byte == b'\n').next();
        self.last = last
            .and_then(json_file::parse)
            .and_then(|entry| entry.time.parse().ok());
    }

    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let known = usize::try_from(self.skip)
            .unwrap_or(usize::MAX)
            .min(lines.len());
        self.skip -= known as u64;
        let new = &lines[known..];
        if new.is_empty() {
            return Ok(());
        }
        self.written += new.len() as u64;
        self.log.append(new)
    }

    /// How far it has come; to be asked between two drains.
    ///
    /// # Errors
    /// The engine's file cannot be read.
    pub fn position(&self, complete: bool) -> Result<Position, TailError> {
        let source = self.source.position();
        let source = source.map_err(failed("read the engine's log", &self.paths.engine_log))?;
        Ok(Position {
            source,
            log: self.log.position(),
            complete,
        })
    }

    /// Waits until the log is on disk.
    ///
    /// # Errors
    /// The system's.
    pub fn sync(&self) -> Result<(), TailError> {
        self.log
            .sync()
            .map_err(failed("sync the log", &self.paths.log))
    }

    /// Goes on with a new file at the log's path, where the old one was renamed.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn reopen(&mut self) -> Result<(), TailError> {
        let log = LogFile::open(&self.paths.log);
        self.log = log.map_err(failed("open the log", &self.paths.log))?;
        Ok(())
    }
}

fn failed(action: &'static str, path: &Path) -> impl Fn(io::Error) -> TailError {
    let path = path.display().to_string();
    move |source| TailError {
        action,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests;
