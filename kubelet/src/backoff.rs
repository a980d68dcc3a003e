//! Delays that double.

use std::{
    cell::Cell,
    collections::HashMap,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Delays by key: the first is the base, each further one twice the last up to
/// the maximum, and the base again after some time without trouble: twice the
/// maximum, if nothing else is said.
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
    /// When the attempt was made after which `delay` holds.
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

    /// Has them begin with the base again after `reset_after` without trouble.
    #[must_use]
    pub const fn reset_after(mut self, reset_after: Duration) -> Self {
        self.reset_after = reset_after;
        self
    }

    /// How long is still to wait before the next attempt of `key`, which failed
    /// at `failed`; `None` when it may be made now. The second value is the whole
    /// delay.
    pub fn remaining(&self, key: &str, failed: Instant) -> Option<(Duration, Duration)> {
        let entry = self.entries.get(key)?;
        if self.is_reset(entry, failed) {
            return None;
        }
        let waited = failed.elapsed();
        (waited < entry.delay).then(|| (entry.delay - waited, entry.delay))
    }

    /// Notes an attempt of `key`, made now after a failure at `failed`.
    pub fn attempt(&mut self, key: &str, failed: Instant) {
        let delay = match self.entries.get(key) {
            Some(entry) if !self.is_reset(entry, failed) => (entry.delay * 2).min(self.max),
            _ => self.base,
        };
        let attempted = Instant::now();
        self.entries
            .insert(key.to_owned(), Entry { delay, attempted });
    }

    /// Forgets `key`.
    pub fn forget(&mut self, key: &str) {
        self.entries.remove(key);
    }

    fn is_reset(&self, entry: &Entry, failed: Instant) -> bool {
        failed.saturating_duration_since(entry.attempted) > self.reset_after
    }
}

thread_local! {
    /// State of this thread's random numbers.
    static RANDOM: Cell<u64> = Cell::new(RandomState::new().hash_one(()));
}

/// Has this thread draw the same random delays from here on whenever `seed` is the
/// same, so that a simulation can be repeated.
pub fn seed(seed: u64) {
    RANDOM.set(seed);
}

/// The next random number of this thread, by the SplitMix64 generator.
fn random() -> u64 {
    let state = RANDOM.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    RANDOM.set(state);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// `delay`, lengthened at random by up to half, so that many pods that failed
/// together are not tried again together.
pub fn jittered(delay: Duration) -> Duration {
    // Below 1024, so the conversion is exact.
    let share = u32::try_from(random() % 512).unwrap_or_default();
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
        tokio::time::sleep(81 * SECOND).await;
        let failed = Instant::now();
        assert_eq!(backoff.remaining("a", failed), None);
        backoff.attempt("a", failed);
        assert_eq!(backoff.remaining("a", failed).unwrap().1, 10 * SECOND);
    }

    #[test]
    fn jitter_adds_at_most_half() {
        for _ in 0..100 {
            let delay = jittered(10 * SECOND);
            assert!((10 * SECOND..=15 * SECOND).contains(&delay), "{delay:?}");
        }
    }

    #[test]
    fn one_seed_gives_one_run() {
        let run = |from| {
            seed(from);
            [(); 8].map(|()| jittered(10 * SECOND))
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
