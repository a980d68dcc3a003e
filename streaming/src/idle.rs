//! The idle timeout: a session that transfers no data for that long is closed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

/// The time of the last data transfer, in either direction.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    start: Instant,
    /// Milliseconds since the start.
    last: Arc<AtomicU64>,
}

impl Activity {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            last: Arc::default(),
        }
    }

    /// Records a transfer of data.
    pub(crate) fn touch(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Resolves when no data was transferred for `timeout`.
    pub(crate) async fn idle(&self, timeout: Duration) {
        loop {
            let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
            let end = self.start + last + timeout;
            if Instant::now() >= end {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}
