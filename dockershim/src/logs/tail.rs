//! Converts the engine's log of a container to CRI's format, exactly once.
//!
//! The output depends only on the engine's bytes. Lines that were written but whose position was
//! not saved before a crash are converted again from the last [`Position`], and [`Sink`] skips
//! them.

use std::{fs::File, sync::Arc};

use super::{
    engine_file::EngineFile,
    json_file,
    log_file::Paths,
    loss::{Episode, Loss, Losses},
    position::{EnginePosition, Position},
    sink::{LogError, Sink, failed},
};

/// Exceeds any line of the engine's log: an entry has at most 16 KiB, each byte escaped to at most
/// six, plus metadata.
const LONGEST_LINE: usize = 1024 * 1024;
/// The approximate limit per drain. A container that writes constantly would otherwise keep its
/// follower from doing anything else.
const PIECE: usize = 4 * 1024 * 1024;

/// The result of a drain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainProgress {
    /// There was nothing new.
    Nothing,
    /// Everything was converted.
    All,
    /// The limit was reached; there is more.
    Piece,
}

/// A conversion in progress.
#[derive(Debug)]
pub struct Tail {
    paths: Paths,
    source: EngineFile,
    sink: Sink,
    /// The engine's timestamp of the last entry.
    pub last: Option<jiff::Timestamp>,
    /// Whether the file of the starting position no longer exists.
    pub position_lost: bool,
    losses: Episode,
}

impl Tail {
    /// Continues from `position`, or starts with the oldest available line.
    ///
    /// # Errors
    /// A file cannot be opened.
    pub fn open(paths: &Paths, position: Option<&Position>) -> Result<Self, LogError> {
        let known = position.and_then(|position| match &position.source {
            EnginePosition::File(source) => Some((source, position.log)),
            EnginePosition::Stream(_) => None,
        });
        let source = EngineFile::open(&paths.engine_log, known.map(|(source, _)| source));
        let source = source.map_err(failed("open the engine's log", &paths.engine_log))?;
        let known = known.filter(|_| !source.lost);
        let sink = Sink::open(&paths.log, known.map(|(_, log)| log))?;
        let mut losses = Episode::default();
        if source.lost {
            losses.count(Loss::Rotated, &paths.log);
        }
        Ok(Self {
            paths: paths.clone(),
            position_lost: source.lost,
            source,
            sink,
            last: None,
            losses,
        })
    }

    /// The position before the first drain; `None` if only timestamps show what the log already
    /// has.
    ///
    /// # Errors
    /// The engine's file cannot be read.
    pub fn beginning(&self) -> Result<Option<Position>, LogError> {
        let exact = self.sink.is_exact();
        exact.then(|| self.position(false)).transpose()
    }

    /// Converts the available entries, up to a limit.
    ///
    /// # Errors
    /// A file cannot be read or written; the caller must then open the conversion again from the
    /// last position.
    pub fn drain(&mut self) -> Result<DrainProgress, LogError> {
        let Paths { engine_log, log } = self.paths.clone();
        let (mut buffer, mut lines) = (Vec::new(), Vec::new());
        let mut taken = 0;
        let unread = || failed("read the engine's log", &engine_log);
        loop {
            // Checked before reading to the end: the engine writes to a file only before it starts
            // the next one.
            let rotated = self.source.is_rotated();
            let read = self.source.read(&mut buffer).map_err(unread())?;
            let whole = match buffer.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                // Too long for a log line.
                None if buffer.len() > LONGEST_LINE => buffer.len(),
                None => 0,
            };
            if whole > 0 {
                taken += whole;
                lines.clear();
                self.convert(&buffer[..whole], &mut lines);
                self.sink.append(&lines)?;
                self.source.take(whole);
                buffer.drain(..whole);
            }
            if read > 0 {
                if taken >= PIECE && self.sink.has_caught_up(self.last) {
                    self.sink.settle();
                    return Ok(DrainProgress::Piece);
                }
                continue;
            }
            if rotated {
                if !buffer.is_empty() {
                    // A crash left an incomplete line at the end of the file.
                    self.losses.count(Loss::Unreadable, &log);
                    buffer.clear();
                }
                if !self.source.next_file().map_err(unread())? {
                    self.losses.count(Loss::Rotated, &log);
                }
            } else if self.source.is_truncated().map_err(unread())? {
                self.losses.count(Loss::Truncated, &log);
                buffer.clear();
                self.source.rewind();
            } else {
                break;
            }
        }
        self.sink.settle();
        self.losses.end();
        Ok(match taken {
            0 => DrainProgress::Nothing,
            _ => DrainProgress::All,
        })
    }

    fn convert(&mut self, bytes: &[u8], lines: &mut Vec<u8>) {
        let mut last = None;
        for entry in json_file::entries(bytes) {
            let Some(entry) = entry else {
                self.losses.count(Loss::Unreadable, &self.paths.log);
                continue;
            };
            if self.sink.wants(&entry.time) {
                entry.append_to(lines);
            }
            last = Some(entry.time);
        }
        if let Some(last) = last {
            self.last = last.parse().ok();
        }
    }

    /// Adds the losses since the last call to `all`.
    pub(super) fn hand_on_losses(&mut self, all: &Losses) {
        self.losses.hand_on(all);
    }

    /// Bytes written to the log since it was opened.
    pub fn written(&self) -> u64 {
        self.sink.written
    }

    /// The current position; valid only between two drains.
    ///
    /// # Errors
    /// The engine's file cannot be read.
    pub fn position(&self, complete: bool) -> Result<Position, LogError> {
        let source = self.source.position();
        let source = source.map_err(failed("read the engine's log", &self.paths.engine_log))?;
        Ok(Position {
            source: EnginePosition::File(source),
            log: self.sink.position(),
            complete,
        })
    }

    /// The log's file, for the task that syncs it to disk.
    pub fn file(&self) -> Arc<File> {
        self.sink.file()
    }

    /// Continues in a new file at the log's path after the old one was renamed. Returns the old
    /// file.
    ///
    /// # Errors
    /// The new file cannot be opened.
    pub fn reopen(&mut self) -> Result<Arc<File>, LogError> {
        self.sink.reopen()
    }
}

#[cfg(test)]
mod tests;
