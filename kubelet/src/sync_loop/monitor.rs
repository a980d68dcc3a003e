//! Health of the sync loop.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A loop without an iteration for longer than this hangs, as upstream; for longer than two
/// intervals, if these are longer.
const MIN_THRESHOLD: Duration = Duration::from_secs(300);

/// The time of the last iteration, and what the loop waits for.
#[derive(Debug)]
pub(crate) struct LoopMonitor {
    threshold: Duration,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    last: Option<Instant>,
    waits_for: Option<String>,
}

impl LoopMonitor {
    /// The monitor of a loop that turns at least once in an interval (`syncFrequency`).
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            threshold: (interval * 2).max(MIN_THRESHOLD),
            seen: Mutex::default(),
        }
    }

    /// An iteration of the loop begins.
    pub(super) fn tick(&self) {
        *self.seen.lock() = Seen {
            last: Some(Instant::now()),
            waits_for: None,
        };
    }

    /// The loop pauses for this reason.
    pub(super) fn waits_for(&self, why: &str) {
        self.seen.lock().waits_for = Some(why.to_owned());
    }

    /// # Errors
    /// A message with the time since the last iteration, and the reason if that is known.
    pub(crate) fn healthy(&self) -> Result<(), String> {
        let seen = self.seen.lock();
        let Some(last) = seen.last else {
            return Ok(());
        };
        let elapsed = last.elapsed();
        if elapsed <= self.threshold {
            return Ok(());
        }
        let why = seen.waits_for.as_ref();
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        Err(format!(
            "sync loop was last active {elapsed:.0?} ago; threshold is {:?}{why}",
            self.threshold
        ))
    }
}
