//! Exponential back-off.

use std::{collections::HashMap, time::Duration};

use kubelet_host::repeatable;
use tokio::time::Instant;

/// Exponential delays by key: the first is the base, each next one doubles up to the maximum,
/// and a key starts over after a time without failures, by default twice the maximum.
#[derive(Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    reset_after: Duration,
    entries: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    delay: Duration,
    /// When the attempt was made that `delay` follows.
    attempted: Instant,
}

impl Backoff {
    /// Delays between `base` and `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self {
            base: base.min(max),
            max,
            reset_after: max * 2,
            entries: HashMap::new(),
        }
    }

    /// Sets the time without failures after which a key starts over.
    #[must_use]
    pub const fn reset_after(mut self, reset_after: Duration) -> Self {
        self.reset_after = reset_after;
        self
    }

    /// The time left before the next attempt of `key`, which failed at `failed`, and the whole
    /// delay; `None` if the attempt may be made now.
    pub fn remaining(&self, key: &str, failed: Instant) -> Option<(Duration, Duration)> {
        let entry = self.entries.get(key)?;
        if self.is_reset(entry, failed) {
            return None;
        }
        let waited = failed.elapsed();
        (waited < entry.delay).then(|| (entry.delay - waited, entry.delay))
    }

    /// Records an attempt of `key`, made now after a failure at `failed`.
    pub fn attempt(&mut self, key: &str, failed: Instant) {
        let delay = match self.entries.get(key) {
            Some(entry) if !self.is_reset(entry, failed) => (entry.delay * 2).min(self.max),
            _ => self.base,
        };
        let attempted = Instant::now();
        self.entries
            .insert(key.to_owned(), Entry { delay, attempted });
    }

    fn is_reset(&self, entry: &Entry, failed: Instant) -> bool {
        failed.saturating_duration_since(entry.attempted) > self.reset_after
    }
}

/// `delay` plus up to half of it, at random, so that pods that failed together are not retried
/// together.
pub fn jittered(delay: Duration) -> Duration {
    let random = repeatable::random() % 512;
    // Below 1024, so the conversion is exact.
    let share = u32::try_from(random).unwrap_or_default();
    delay + delay * share / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn doubles_up_to_the_maximum_and_resets() {
        let mut backoff = Backoff::new(10 * SECOND, 40 * SECOND);
        let mut delays = Vec::new();
        let mut failed = Instant::now();
        for _ in 0..4 {
            assert_eq!(backoff.remaining("a", failed), None);
            backoff.attempt("a", failed);
            failed = Instant::now();
            let (left, delay) = backoff.remaining("a", failed).unwrap();
            assert_eq!(left, delay);
            delays.push(delay.as_secs());
            tokio::time::sleep(delay).await;
        }
        assert_eq!(delays, [10, 20, 40, 40]);
        // What is left of a delay, and the last moment at which trouble goes on.
        tokio::time::sleep(40 * SECOND).await;
        failed = Instant::now();
        tokio::time::sleep(3 * SECOND).await;
        assert_eq!(
            backoff.remaining("a", failed),
            Some((37 * SECOND, 40 * SECOND))
        );
        tokio::time::sleep(38 * SECOND).await;
        let failed = Instant::now();
        assert_eq!(backoff.remaining("a", failed), None);
        backoff.attempt("a", failed);
        assert_eq!(backoff.remaining("a", failed).unwrap().1, 10 * SECOND);
    }

    #[test]
    fn jitter_adds_at_most_half_and_spreads_over_it() {
        let mut by_second = [0; 5];
        for _ in 0..1000 {
            let delay = jittered(10 * SECOND);
            assert!((10 * SECOND..15 * SECOND).contains(&delay), "{delay:?}");
            by_second[usize::try_from(delay.as_secs()).unwrap() - 10] += 1;
        }
        // 200 each, give or take ten standard deviations.
        let spread = by_second.iter().all(|count| (70..330).contains(count));
        assert!(spread, "{by_second:?}");
    }
}
