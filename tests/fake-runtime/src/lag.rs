//! Lists that lag behind, while statuses are current.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::{
    FakeRuntime,
    objects::{Container, Sandbox},
};

/// The interval between two snapshots.
const INTERVAL: Duration = Duration::from_millis(100);

/// The snapshots that lagging lists are served from.
#[derive(Debug)]
pub(super) struct Lag {
    by: Duration,
    snapshots: VecDeque<(Instant, Snapshot)>,
}

/// A snapshot of the sandboxes and containers.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) sandboxes: BTreeMap<String, Sandbox>,
    pub(super) containers: BTreeMap<String, Container>,
}

impl Lag {
    fn new(by: Duration) -> Self {
        Self {
            by,
            snapshots: VecDeque::new(),
        }
    }

    /// Adds a snapshot of this moment.
    pub(super) fn add(&mut self, snapshot: Snapshot) {
        let now = Instant::now();
        self.snapshots.push_back((now, snapshot));
        // Keep the newest snapshot that is at least `by` old, and those after it.
        while self
            .snapshots
            .get(1)
            .is_some_and(|(at, _)| *at + self.by <= now)
        {
            self.snapshots.pop_front();
        }
    }

    /// The snapshot that lists are served from.
    pub(super) fn reported(&self) -> Option<&Snapshot> {
        self.snapshots.front().map(|(_, snapshot)| snapshot)
    }
}

impl FakeRuntime {
    /// Makes the lists of sandboxes and containers lag behind by this long; zero makes them current
    /// again. Statuses are always current.
    pub fn lag_lists(&self, by: Duration) {
        let mut world = self.0.world.lock();
        let lags_already = world.lag.is_some();
        world.lag = (!by.is_zero()).then(|| Lag::new(by));
        if !world.take_snapshot() || lags_already {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                sleep(INTERVAL).await;
                match inner.upgrade() {
                    Some(inner) if inner.world.lock().take_snapshot() => {}
                    _ => return,
                }
            }
        });
    }
}
