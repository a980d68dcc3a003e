//! Lists that answer as of a moment ago, while statuses are current.

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

/// Between two looks at the world.
const LOOK: Duration = Duration::from_millis(20);

/// What there was a moment ago.
#[derive(Debug)]
pub(super) struct Lag {
    by: Duration,
    seen: VecDeque<(Instant, Seen)>,
}

/// What there was at one look.
#[derive(Debug)]
struct Seen {
    sandboxes: BTreeMap<String, Sandbox>,
    containers: BTreeMap<String, Container>,
}

impl World {
    /// The sandboxes that lists tell of.
    pub(super) fn listed_sandboxes(&self) -> &BTreeMap<String, Sandbox> {
        let seen = self.lag.as_ref().and_then(Lag::told);
        seen.map_or(&self.sandboxes, |seen| &seen.sandboxes)
    }

    /// The containers that lists tell of.
    pub(super) fn listed_containers(&self) -> &BTreeMap<String, Container> {
        let seen = self.lag.as_ref().and_then(Lag::told);
        seen.map_or(&self.containers, |seen| &seen.containers)
    }

    /// `false`: lists do not lag any more.
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
        // The newest that is old enough is what is told.
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
    /// Lets lists of sandboxes and containers answer as of so long ago, or as of now
    /// again. Statuses are current.
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
