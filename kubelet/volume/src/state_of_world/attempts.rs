//! Serialisation and back-off of operations.

use std::time::Duration;

use tokio::time::Instant;

/// The first and the longest delay after a failed operation, as upstream.
pub(super) const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// The operations on one volume or device: one at a time, with a back-off.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) busy: bool,
    delay: Option<Duration>,
    not_before: Option<Instant>,
    pub(super) error: Option<String>,
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
        self.delay = error.as_ref().map(|_| {
            self.delay
                .map_or(RETRY_BASE, |delay| (delay * 2).min(RETRY_MAX))
        });
        self.not_before = self.delay.map(|delay| now + delay);
        self.error = error;
    }

    /// Resets the back-off: the next operation is a different one, or has a new chance.
    pub(super) fn turn(&mut self) {
        self.delay = None;
        self.not_before = None;
        self.error = None;
    }
}
