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
    world::World,
};

/// The interval between two snapshots.
const INTERVAL: Duration = Duration::from_millis(20);

/// The snapshots that lagging lists are served from.
#[derive(Debug)]
pub(super) struct Lag {
    by: Duration,
    snapshots: VecDeque<(Instant, Snapshot)>,
}

/// A snapshot of the sandboxes and containers.
#[derive(Debug)]
struct Snapshot {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
}

impl World {
    /// The sandboxes that the list verbs report.
    pub(super) fn listed_sandboxes(&self) -> &BTreeMap<String, Sandbox> {
        let snapshot = self.lag.as_ref().and_then(Lag::reported);
        snapshot.map_or(&self.sandboxes, |snapshot| &snapshot.sandboxes)
    }

    /// The containers that the list verbs report.
    pub(super) fn listed_containers(&self) -> &BTreeMap<String, Container> {
        let snapshot = self.lag.as_ref().and_then(Lag::reported);
        snapshot.map_or(&self.containers, |snapshot| &snapshot.containers)
    }

    /// Takes a snapshot. Returns `false` if lists no longer lag.
    fn take_snapshot(&mut self) -> bool {
        let snapshot = Snapshot {
            sandboxes: self.sandboxes.clone(),
            containers: self.containers.clone(),
        };
        let Some(lag) = &mut self.lag else {
            return false;
        };
        let now = Instant::now();
        lag.snapshots.push_back((now, snapshot));
        // Keep the newest snapshot that is at least `by` old, and those after it.
        while lag
            .snapshots
            .get(1)
            .is_some_and(|(at, _)| *at + lag.by <= now)
        {
            lag.snapshots.pop_front();
        }
        true
    }
}

impl Lag {
    fn reported(&self) -> Option<&Snapshot> {
        self.snapshots.front().map(|(_, snapshot)| snapshot)
    }
}

impl FakeRuntime {
    /// Makes the lists of sandboxes and containers lag behind by this long; zero makes them current
    /// again. Statuses are always current.
    pub fn lag_lists(&self, by: Duration) {
        let mut world = self.0.world.lock();
        let lags_already = world.lag.is_some();
        world.lag = (!by.is_zero()).then(|| Lag {
            by,
            snapshots: VecDeque::new(),
        });
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
