//! Limits of a server, with a counter and a log message for each time that one is reached.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// The time without reaching a limit after which reaching it is logged again.
const EPISODE: Duration = Duration::from_secs(60);

/// A limit on a resource of a server that its clients use up.
#[derive(Debug)]
pub struct Bound {
    server: &'static str,
    name: &'static str,
    most: usize,
    reached: AtomicU64,
    last: Mutex<Option<Instant>>,
}

impl Bound {
    /// Creates a limit of `most` on the resource `name` of a server.
    pub const fn new(server: &'static str, name: &'static str, most: usize) -> Self {
        Self {
            server,
            name,
            most,
            reached: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// The name of the server, for metrics.
    pub const fn server(&self) -> &'static str {
        self.server
    }

    /// The name of the limited resource, for metrics.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// The limit.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// How often the limit was reached.
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Relaxed)
    }

    /// Counts that the limit was reached, and logs it at the start of an episode.
    pub fn reach(&self) {
        self.reached.fetch_add(1, Ordering::Relaxed);
        if self.begins() {
            tracing::warn!(
                server = self.server,
                bound = self.name,
                most = self.most,
                "a bound was reached; not reported again until a minute passes without it"
            );
        }
    }

    /// Checks whether a new episode starts now.
    fn begins(&self) -> bool {
        let now = Instant::now();
        let last = self.last.lock().replace(now);
        last.is_none_or(|last| now.duration_since(last) >= EPISODE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_episode_is_told_once_and_counted_each_time() {
        let bound = Bound::new("secure", "connections", 7);
        assert!(bound.begins());
        for _ in 0..5 {
            tokio::time::advance(EPISODE / 2).await;
            assert!(!bound.begins(), "the same episode");
        }
        tokio::time::advance(EPISODE).await;
        assert!(bound.begins());
        bound.reach();
        bound.reach();
        assert_eq!(bound.reached(), 2);
    }
}
