//! The walks through directories that are in progress: what they have found so far, and whether
//! their results are awaited.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity::PodUid;
use parking_lot::Mutex;
use tokio::{sync::watch, time::sleep};

use crate::usage::FileUsage;

/// The most walks for whose sake a walk rests longer.
const MAX_CROWD: u32 = 8;

/// A volume: the UID of its pod, and its name in the pod's spec.
type VolumeKey = (PodUid, String);

/// The walks in progress.
#[derive(Debug, Default)]
pub(crate) struct Walks {
    running: Mutex<HashMap<VolumeKey, Arc<Found>>>,
    /// How many wait for the results.
    waiting: watch::Sender<usize>,
}

/// What a walk through a volume has found so far.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) pod: Arc<Pod>,
    bytes: AtomicU64,
    inodes: AtomicU64,
}

/// A walk in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct Walk {
    walks: Arc<Walks>,
    key: VolumeKey,
    found: Arc<Found>,
}

/// Waits for results, until it is dropped: walks do not rest meanwhile.
#[derive(Debug)]
pub(crate) struct Waiting<'a>(&'a Walks);

impl Walks {
    /// Begins a walk through a volume; there must be no other one through it.
    pub(crate) fn begin(self: &Arc<Self>, pod: &Arc<Pod>, volume: &str) -> Walk {
        let key = (PodUid::of(pod), volume.to_owned());
        let found = Arc::new(Found {
            pod: Arc::clone(pod),
            bytes: AtomicU64::new(0),
            inodes: AtomicU64::new(0),
        });
        self.running.lock().insert(key.clone(), Arc::clone(&found));
        Walk {
            walks: Arc::clone(self),
            key,
            found,
        }
    }

    /// Hurries all walks.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.send_modify(|waiting| *waiting += 1);
        Waiting(self)
    }

    /// The walks in progress, and what they have found.
    pub(crate) fn found(&self) -> Vec<(VolumeKey, Arc<Found>)> {
        let running = self.running.lock();
        let walks = running.iter();
        walks
            .map(|(key, found)| (key.clone(), Arc::clone(found)))
            .collect()
    }
}

impl Found {
    pub(crate) fn usage(&self) -> FileUsage {
        FileUsage {
            bytes: self.bytes.load(Ordering::Relaxed),
            inodes: self.inodes.load(Ordering::Relaxed),
        }
    }
}

impl Walk {
    /// Notes what the walk has found so far.
    pub(crate) fn has_found(&self, usage: FileUsage) {
        self.found.bytes.store(usage.bytes, Ordering::Relaxed);
        self.found.inodes.store(usage.inodes, Ordering::Relaxed);
    }

    /// How many walks run, as far as it matters for their rests.
    pub(crate) fn crowd(&self) -> u32 {
        let running = self.walks.running.lock().len();
        u32::try_from(running)
            .unwrap_or(MAX_CROWD)
            .clamp(1, MAX_CROWD)
    }

    /// Rests, unless the result is awaited.
    pub(crate) async fn rest(&self, duration: Duration) {
        let mut waiting = self.walks.waiting.subscribe();
        tokio::select! {
            // The sender is in use.
            _ = waiting.wait_for(|waiting| *waiting > 0) => {}
            () = sleep(duration) => {}
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.walks.running.lock().remove(&self.key);
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.send_modify(|waiting| *waiting -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn walks_rest_unless_they_are_awaited() {
        let walks = Arc::<Walks>::default();
        let walk = walks.begin(&Arc::default(), "v");
        let begun = Instant::now();
        let rest = Duration::from_secs(10);
        walk.rest(rest).await;
        assert_eq!(begun.elapsed(), rest);
        let waits = async {
            sleep(Duration::from_secs(1)).await;
            let waiting = walks.wait();
            sleep(Duration::from_secs(1)).await;
            drop(waiting);
        };
        let walks_on = async {
            walk.rest(rest).await;
            walk.rest(rest).await;
        };
        tokio::join!(waits, walks_on);
        assert_eq!(begun.elapsed(), rest + Duration::from_secs(2));
        walk.rest(rest).await;
        assert_eq!(begun.elapsed(), rest * 2 + Duration::from_secs(2));
    }
}
