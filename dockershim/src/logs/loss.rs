//! Counts container output that did not reach the logs.

use std::{
    fmt,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

/// Why output is missing in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// The engine removed a file before it was read. The amount is unknown.
    Rotated,
    /// The engine's file was truncated; output that had not been read is lost, if any.
    Truncated,
    /// A line of the engine's file is invalid, for example after a crash of the engine.
    Unreadable,
    /// The container was removed before its log was complete.
    Removed,
}

impl Loss {
    /// All variants.
    pub const ALL: [Self; 4] = [
        Self::Rotated,
        Self::Truncated,
        Self::Unreadable,
        Self::Removed,
    ];

    /// The name in metrics.
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
            Self::Truncated => "the engine's log was truncated",
            Self::Unreadable => "a line of the engine's log is not a valid entry",
            Self::Removed => "the container was removed before its log was complete",
        })
    }
}

/// The number of losses of each kind.
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

/// The losses of one log. Each kind is logged once until the log has caught up.
#[derive(Debug, Default)]
pub(super) struct Episode {
    counts: [u64; Loss::ALL.len()],
    told: [bool; Loss::ALL.len()],
}

impl Episode {
    /// Counts a loss, and logs the first of its kind.
    pub(super) fn count(&mut self, loss: Loss, log: &Path) {
        if self.is_first(loss) {
            tracing::warn!(
                log = %log.display(),
                reason = loss.name(),
                "lost output: {loss}"
            );
        }
    }

    /// Counts a loss; returns whether it is the first of its kind.
    pub(super) fn is_first(&mut self, loss: Loss) -> bool {
        self.counts[loss as usize] += 1;
        !std::mem::replace(&mut self.told[loss as usize], true)
    }

    /// Records that the log has caught up.
    pub(super) fn end(&mut self) {
        self.told = Default::default();
    }

    /// Adds the counts to `all`.
    pub(super) fn hand_on(&mut self, all: &Losses) {
        for loss in Loss::ALL {
            let count = std::mem::take(&mut self.counts[loss as usize]);
            if count > 0 {
                all.add(loss, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_told_once_until_the_log_has_caught_up_and_counted_each_time() {
        let (mut episode, all) = (Episode::default(), Losses::default());
        for _ in 0..2 {
            let rotated = [(); 3].map(|()| episode.is_first(Loss::Rotated));
            assert_eq!(rotated, [true, false, false]);
            assert!(episode.is_first(Loss::Removed));
            episode.end();
        }
        episode.hand_on(&all);
        episode.hand_on(&all);
        assert_eq!(Loss::ALL.map(|loss| all.get(loss)), [6, 0, 0, 2]);
    }
}
