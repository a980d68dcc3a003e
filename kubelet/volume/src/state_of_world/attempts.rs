//! Serialisation and back-off of operations.

use std::time::Duration;

use retry_delay::RetryDelay;
use tokio::time::Instant;

/// The first and the longest delay after a failed operation, as upstream.
pub(super) const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// The operations on one volume or device: one at a time, with a back-off.
#[derive(Debug)]
pub(super) struct Attempts {
    pub(super) busy: bool,
    delay: RetryDelay,
    not_before: Option<Instant>,
    pub(super) error: Option<String>,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            busy: false,
            delay: RetryDelay::new(RETRY_BASE, RETRY_MAX),
            not_before: None,
            error: None,
        }
    }
}

impl Attempts {
    /// Whether an operation may start now. If it has to back off, lowers `next` to when it may.
    pub(super) fn may_begin(&self, now: Instant, next: &mut Option<Instant>) -> bool {
        match self.not_before {
            _ if self.busy => false,
            Some(at) if at > now => {
                *next = Some(next.map_or(at, |next| next.min(at)));
                false
            }
            _ => true,
        }
    }

    pub(super) fn end(&mut self, error: Option<String>, now: Instant) {
        self.busy = false;
        self.not_before = None;
        match &error {
            Some(_) => self.not_before = Some(now + self.delay.after_failure()),
            None => self.delay.reset(),
        }
        self.error = error;
    }

    /// Resets the back-off: the next operation is a different one, or has a new chance.
    pub(super) fn turn(&mut self) {
        self.delay.reset();
        self.not_before = None;
        self.error = None;
    }
}
