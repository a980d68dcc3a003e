//! Delays between failed attempts of one operation.

#![forbid(unsafe_code)]

use std::time::Duration;

/// The delays after consecutive failures: the first one, doubled each time, up to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryDelay {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl RetryDelay {
    /// Delays from `first` to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    /// The delay after the next failure.
    pub const fn current(&self) -> Duration {
        self.next
    }

    /// The delay after one more failure.
    pub fn after_failure(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(self.longest);
        delay
    }

    /// The delay after the next failure is the first again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }

    /// The delay after the next failure is the longest.
    pub const fn skip_to_longest(&mut self) {
        self.next = self.longest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_begin_anew() {
        let mut delay = RetryDelay::new(Duration::from_secs(1), Duration::from_secs(5));
        let mut seconds = || delay.after_failure().as_secs();
        assert_eq!([seconds(), seconds(), seconds(), seconds()], [1, 2, 4, 5]);
        assert_eq!(seconds(), 5);
        delay.reset();
        assert_eq!(delay.after_failure().as_secs(), 1);
        delay.skip_to_longest();
        assert_eq!(delay.after_failure().as_secs(), 5);
    }
}
