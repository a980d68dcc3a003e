//! Bounds: how often each was reached, and when that is worth a line in the log.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// A bound that was not reached for so long is reached anew.
const EPISODE: Duration = Duration::from_secs(60);

/// A bound on what others can take of a server.
#[derive(Debug)]
pub struct Bound {
    server: &'static str,
    name: &'static str,
    most: usize,
    reached: AtomicU64,
    last: Mutex<Option<Instant>>,
}

impl Bound {
    /// `most` of what `name` says, on a server.
    pub const fn new(server: &'static str, name: &'static str, most: usize) -> Self {
        Self {
            server,
            name,
            most,
            reached: AtomicU64::new(0),
            last: Mutex::new(None),
        }
    }

    /// The server that has the bound, for metrics.
    pub const fn server(&self) -> &'static str {
        self.server
    }

    /// What is bounded, for metrics.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// How many there may be.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// How often there would have been more.
    pub fn reached(&self) -> u64 {
        self.reached.load(Ordering::Relaxed)
    }

    /// There would have been one more. Says so in the log when an episode of that begins.
    pub fn reach(&self) {
        self.reached.fetch_add(1, Ordering::Relaxed);
        if self.begins() {
            tracing::warn!(
                server = self.server,
                bound = self.name,
                most = self.most,
                "A bound was reached; it is said again after a minute without"
            );
        }
    }

    /// Whether an episode begins now.
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
