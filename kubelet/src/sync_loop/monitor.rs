//! Sees that the sync loop comes round.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A loop that did not come round for so long hangs, as upstream.
const HEALTH_THRESHOLD: Duration = Duration::from_secs(120);

/// When the loop last came round, and what it waits for.
#[derive(Debug, Default)]
pub(crate) struct LoopMonitor(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    last: Option<Instant>,
    waits_for: Option<String>,
}

impl LoopMonitor {
    /// The loop comes round.
    pub(super) fn tick(&self) {
        *self.0.lock() = Seen {
            last: Some(Instant::now()),
            waits_for: None,
        };
    }

    /// The loop takes nothing, for this reason.
    pub(super) fn waits_for(&self, why: &str) {
        self.0.lock().waits_for = Some(why.to_owned());
    }

    /// # Errors
    /// For people: for how long it did not come round, and why if that is known.
    pub(crate) fn healthy(&self) -> Result<(), String> {
        let seen = self.0.lock();
        let Some(last) = seen.last else {
            return Ok(());
        };
        let elapsed = last.elapsed();
        if elapsed <= HEALTH_THRESHOLD {
            return Ok(());
        }
        let why = seen.waits_for.as_ref();
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        Err(format!(
            "sync loop was last active {elapsed:.0?} ago; threshold is {HEALTH_THRESHOLD:?}{why}"
        ))
    }
}
