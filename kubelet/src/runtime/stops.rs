//! Stops of containers that are on their way.

use std::{collections::BTreeMap, future::Future, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

/// For how long a stop that nobody waits for any more is remembered beyond its end.
const MEMORY: Duration = Duration::from_secs(600);

/// Until when each container was told to end, by id. Whoever asked may be gone: a sync is
/// given up when its pod is to end. What it asked for holds nonetheless, for runtimes
/// (containerd) send no second signal, and a longer wait would be in vain.
#[derive(Debug, Default)]
pub(super) struct Stops(Mutex<BTreeMap<String, Instant>>);

impl Stops {
    /// What is left of the time that a container was given to end, if it was told to.
    pub(super) fn left(&self, id: &str) -> Option<Duration> {
        let stops = self.0.lock();
        let deadline = stops.get(id)?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Remembers the stop of a container within `grace` until `stop` has come to an end.
    pub(super) async fn during<T>(
        &self,
        id: &str,
        grace: Duration,
        stop: impl Future<Output = T>,
    ) -> T {
        let now = Instant::now();
        {
            let mut stops = self.0.lock();
            stops.retain(|_, deadline| *deadline + MEMORY > now);
            let deadline = stops.entry(id.to_owned()).or_insert(now + grace);
            *deadline = (*deadline).min(now + grace);
        }
        let ended = stop.await;
        self.0.lock().remove(id);
        ended
    }
}
