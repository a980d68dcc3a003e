//! The time that a pod spends on pulls.

use std::time::Duration;

use tokio::time::Instant;

/// The time with at least one pull of a pod under way.
#[derive(Debug, Default)]
pub(super) struct PullTime {
    under_way: usize,
    since: Option<Instant>,
    before: Duration,
}

impl PullTime {
    pub(super) fn so_far(&self) -> Duration {
        let now = self.since.map(|since| since.elapsed());
        self.before + now.unwrap_or_default()
    }

    pub(super) fn begin(&mut self) {
        self.under_way += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    pub(super) fn end(&mut self) {
        self.under_way -= 1;
        if self.under_way == 0 {
            self.before = self.so_far();
            self.since = None;
        }
    }
}
