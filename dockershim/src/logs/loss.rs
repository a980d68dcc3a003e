//! Counts output of containers that did not reach their logs.

use std::{
    fmt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Why output of a container is not in its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The engine removed a file before it was read. How much was in it nobody knows.
    Rotated,
    /// The engine's file was cut; what was not read before is gone, if there was any.
    Truncated,
    /// A line of the engine's file is no entry, as one that a crash of the engine tore.
    Unreadable,
    /// The container was removed before its log was complete.
    Removed,
}

impl Loss {
    /// Each.
    pub const ALL: [Self; 4] = [
        Self::Rotated,
        Self::Truncated,
        Self::Unreadable,
        Self::Removed,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rotated => "rotated",
            Self::Truncated => "truncated",
            Self::Unreadable => "unreadable",
            Self::Removed => "removed",
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rotated => "the engine removed it before it was read",
            Self::Truncated => "the engine's log was cut",
            Self::Unreadable => "a line of the engine's log is no entry",
            Self::Removed => "the container was removed before its log was complete",
        })
    }
}

/// How often each was.
#[derive(Debug, Default)]
pub(super) struct Losses([AtomicU64; Loss::ALL.len()]);

impl Losses {
    pub(super) fn add(&self, loss: Loss, count: u64) {
        self.0[loss as usize].fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self, loss: Loss) -> u64 {
        self.0[loss as usize].load(Ordering::Relaxed)
    }
}

/// The losses of one log, each kind told once until it has caught up.
#[derive(Debug, Default)]
pub(super) struct Episode {
    counts: [u64; Loss::ALL.len()],
    told: [bool; Loss::ALL.len()],
}

impl Episode {
    /// Counts one.
    pub(super) fn count(&mut self, loss: Loss, log: &Path) {
        self.counts[loss as usize] += 1;
        if !std::mem::replace(&mut self.told[loss as usize], true) {
            tracing::warn!(log = %log.display(), reason = loss.name(), "output is lost: {loss}");
        }
    }

    /// The log has caught up.
    pub(super) fn end(&mut self) {
        self.told = Default::default();
    }

    /// Adds what was counted to `all`.
    pub(super) fn hand_on(&mut self, all: &Losses) {
        for loss in Loss::ALL {
            let count = std::mem::take(&mut self.counts[loss as usize]);
            if count > 0 {
                all.add(loss, count);
            }
        }
    }
}
