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
const LOOK: Duration = Duration::from_millis(20);

/// The snapshots that lagging lists are served from.
#[derive(Debug)]
pub(super) struct Lag {
    by: Duration,
    seen: VecDeque<(Instant, Seen)>,
}

/// A snapshot of the sandboxes and containers.
#[derive(Debug)]
struct Seen {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
}

impl World {
    /// The sandboxes that the list verbs report.
    pub(super) fn listed_sandboxes(&self) -> &BTreeMap<String, Sandbox> {
        let seen = self.lag.as_ref().and_then(Lag::told);
        seen.map_or(&self.sandboxes, |seen| &seen.sandboxes)
    }

    /// The containers that the list verbs report.
    pub(super) fn listed_containers(&self) -> &BTreeMap<String, Container> {
        let seen = self.lag.as_ref().and_then(Lag::told);
        seen.map_or(&self.containers, |seen| &seen.containers)
    }

    /// Takes a snapshot. Returns `false` if lists no longer lag.
    fn look(&mut self) -> bool {
        let seen = Seen {
            sandboxes: self.sandboxes.clone(),
            containers: self.containers.clone(),
        };
        let Some(lag) = &mut self.lag else {
            return false;
        };
        let now = Instant::now();
        lag.seen.push_back((now, seen));
        // Keep the newest snapshot that is at least `by` old, and those after it.
        while lag.seen.get(1).is_some_and(|(at, _)| *at + lag.by <= now) {
            lag.seen.pop_front();
        }
        true
    }
}

impl Lag {
    fn told(&self) -> Option<&Seen> {
        self.seen.front().map(|(_, seen)| seen)
    }
}

impl FakeRuntime {
    /// Makes the lists of sandboxes and containers lag behind by this long; zero makes them current
    /// again. Statuses are always current.
    pub fn lag_lists(&self, by: Duration) {
        let mut world = self.0.world.lock();
        let looks_already = world.lag.is_some();
        world.lag = (!by.is_zero()).then(|| Lag {
            by,
            seen: VecDeque::new(),
        });
        if !world.look() || looks_already {
            return;
        }
        let inner = Arc::downgrade(&self.0);
        tokio::spawn(async move {
            loop {
                sleep(LOOK).await;
                match inner.upgrade() {
                    Some(inner) if inner.world.lock().look() => {}
                    _ => return,
                }
            }
        });
    }
}
