//! The resource usage of sandboxes and containers, read from the kernel on request: the engine is
//! not queried, and nothing runs without requests.
//!
//! A verb uses one [`StatsCollector`] for everything that it lists, on a blocking thread. Only the
//! size of writable layers, which requires walking through their files, is measured in the
//! background ([`writable_layer`]).

pub mod cgroup;
mod collector;
pub mod convert;
pub mod families;
mod metrics;
pub mod network;
mod upper_dir;
pub mod writable_layer;

use std::{sync::Arc, time::Duration};

use cgroup_stats::CpuRates;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use collector::StatsCollector;

use crate::{
    Error,
    model::{Model, Snapshot},
    process::Processes,
};
use cgroup::CgroupCache;
use network::NetworkNamespaces;
use writable_layer::WritableLayers;

/// The time after which reads of kernel files are considered hung.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of concurrent collections, so that hanging ones do not use up all threads.
const CONCURRENCY: usize = 4;

/// State kept between collections.
#[derive(Debug)]
pub struct Stats {
    processes: Arc<Processes>,
    cgroups: CgroupCache,
    namespaces: NetworkNamespaces,
    cpu_rates: CpuRates,
    permits: Arc<Semaphore>,
    /// The sizes of the containers' writable layers.
    pub layers: Arc<WritableLayers>,
}

impl Stats {
    /// Starts the measurement of writable layers, until `stop`. `has_backlogs`: the engine keeps
    /// output for the shim.
    pub fn start(
        model: Arc<Model>,
        processes: Arc<Processes>,
        has_backlogs: bool,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            cgroups: CgroupCache::new(Arc::clone(&processes)),
            namespaces: NetworkNamespaces::new(Arc::clone(&processes)),
            layers: WritableLayers::start(model, Arc::clone(&processes), has_backlogs, stop),
            processes,
            cpu_rates: CpuRates::default(),
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
        })
    }

    /// Collects stats for `verb` on a blocking thread. `root_dir` is the engine's data directory.
    ///
    /// # Errors
    /// `DeadlineExceeded` if the kernel does not answer.
    pub async fn collect<T: Send + 'static>(
        self: Arc<Self>,
        snapshot: Arc<Snapshot>,
        root_dir: String,
        verb: &'static str,
        work: impl FnOnce(&mut StatsCollector, &Snapshot) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let permits = Arc::clone(&self.permits);
        let task = async move {
            let permit = permits.acquire_owned().await;
            let task = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                self.retain(&snapshot);
                work(&mut StatsCollector::new(self, root_dir), &snapshot)
            });
            task.await.map_err(|_| Error::Panicked(verb))
        };
        tokio::time::timeout(LIMIT, task)
            .await
            .unwrap_or(Err(Error::Deadline {
                action: "read the cgroups for",
                object: verb.into(),
                limit: LIMIT,
            }))
    }

    /// Forgets sandboxes and containers that are not in `snapshot`.
    fn retain(&self, snapshot: &Snapshot) {
        self.cgroups.retain(|id| snapshot.contains(id));
        self.namespaces.retain(|id| snapshot.contains(id));
        self.cpu_rates.retain(|id| snapshot.contains(id));
    }
}
