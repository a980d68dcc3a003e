//! Rate limits for pulls and requests.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket: it fills at a steady rate up to its capacity.
#[derive(Debug)]
pub struct TokenBucket {
    /// Tokens per second.
    rate: f64,
    burst: f64,
    /// The number of tokens at an instant; negative while callers wait.
    level: Mutex<(f64, Instant)>,
}

impl TokenBucket {
    /// A full bucket of `burst` tokens that gains `rate` tokens per second.
    pub fn new(rate: u32, burst: u32) -> Self {
        Self {
            rate: f64::from(rate),
            burst: f64::from(burst),
            level: Mutex::new((f64::from(burst), Instant::now())),
        }
    }

    /// Takes a token if one is available.
    pub fn try_take(&self) -> bool {
        let now = Instant::now();
        let mut level = self.level.lock();
        let tokens = self.tokens(*level, now);
        let taken = tokens >= 1.0;
        *level = (if taken { tokens - 1.0 } else { tokens }, now);
        taken
    }

    /// Waits for a token, in the order of the calls. A caller that stops waiting leaves its
    /// token to the others. The rate must not be 0.
    pub async fn take(&self) {
        let missing = {
            let now = Instant::now();
            let mut level = self.level.lock();
            let tokens = self.tokens(*level, now) - 1.0;
            *level = (tokens, now);
            (-tokens).max(0.0)
        };
        if missing > 0.0 {
            let queued = QueuedToken(Some(self));
            let wait = Duration::try_from_secs_f64(missing / self.rate);
            tokio::time::sleep(wait.unwrap_or(Duration::MAX)).await;
            queued.taken();
        }
    }

    fn give_back(&self) {
        let now = Instant::now();
        let mut level = self.level.lock();
        *level = ((self.tokens(*level, now) + 1.0).min(self.burst), now);
    }

    fn tokens(&self, (tokens, at): (f64, Instant), now: Instant) -> f64 {
        let gained = now.saturating_duration_since(at).as_secs_f64() * self.rate;
        (tokens + gained).min(self.burst)
    }
}

/// A place in the queue for tokens; dropping it gives the token back unless it was taken.
struct QueuedToken<'a>(Option<&'a TokenBucket>);

impl QueuedToken<'_> {
    fn taken(mut self) {
        self.0 = None;
    }
}

impl Drop for QueuedToken<'_> {
    fn drop(&mut self) {
        if let Some(bucket) = self.0 {
            bucket.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(bucket: &TokenBucket) -> usize {
        (0..20).take_while(|_| bucket.try_take()).count()
    }

    #[tokio::test(start_paused = true)]
    async fn gives_the_burst_and_then_the_rate() {
        let bucket = TokenBucket::new(2, 5);
        assert_eq!(takes(&bucket), 5);
        tokio::time::advance(Duration::from_millis(499)).await;
        assert_eq!(takes(&bucket), 0);
        tokio::time::advance(Duration::from_millis(2)).await;
        assert_eq!(takes(&bucket), 1);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(takes(&bucket), 2);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(takes(&bucket), 5);
        assert_eq!(takes(&TokenBucket::new(5, 0)), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_gets_a_token_in_turn() {
        let bucket = TokenBucket::new(10, 2);
        let begun = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..4 {
            bucket.take().await;
            waits.push(begun.elapsed().as_millis());
        }
        assert_eq!(waits, [0, 0, 100, 200]);
        assert!(!bucket.try_take());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_leaves_the_token_to_others() {
        let bucket = TokenBucket::new(1, 1);
        bucket.take().await;
        for _ in 0..100 {
            let wait = tokio::time::timeout(Duration::from_millis(1), bucket.take());
            assert!(wait.await.is_err());
        }
        let begun = Instant::now();
        bucket.take().await;
        assert!(begun.elapsed() <= Duration::from_secs(1));
    }
}
