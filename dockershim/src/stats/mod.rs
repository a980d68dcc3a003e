//! The resource usage of sandboxes and containers, read from the kernel on request: the engine is
//! not queried, and nothing runs without requests.
//!
//! A verb uses one [`Look`] for everything that it lists, on a blocking thread. Only the size of
//! writable layers, which requires walking through their files, is measured in the background
//! ([`writable_layer`]).

pub mod block_io;
pub mod cgroup;
pub mod convert;
mod cpu_rate;
mod descriptors;
mod disk_walk;
pub mod families;
mod look;
mod metrics;
pub mod network;
pub mod pressure;
mod upper_dir;
pub mod usage;
pub mod writable_layer;

use std::{sync::Arc, time::Duration};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use look::Look;

use crate::{
    Error, Shim,
    model::{Model, Snapshot},
    process::Processes,
};
use cgroup::Finder;
use cpu_rate::CpuRates;
use network::Namespaces;
use writable_layer::WritableLayers;

/// The time after which reads of kernel files are considered hung.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of concurrent looks, so that hanging ones do not use up all threads.
const CONCURRENCY: usize = 4;

/// State kept between looks.
#[derive(Debug)]
pub struct Stats {
    processes: Arc<Processes>,
    cgroups: Finder,
    namespaces: Namespaces,
    cpu_rates: CpuRates,
    permits: Arc<Semaphore>,
    /// The sizes of the containers' writable layers.
    pub layers: Arc<WritableLayers>,
}

impl Stats {
    /// Starts the measurement of writable layers, until `stop`.
    pub fn start(
        model: Arc<Model>,
        processes: Arc<Processes>,
        stop: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            cgroups: Finder::new(Arc::clone(&processes)),
            namespaces: Namespaces::new(Arc::clone(&processes)),
            layers: WritableLayers::start(model, Arc::clone(&processes), stop),
            processes,
            cpu_rates: CpuRates::default(),
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
        })
    }

    /// Forgets sandboxes and containers that are not in `snapshot`.
    fn retain(&self, snapshot: &Snapshot) {
        self.cgroups.retain(|id| snapshot.contains(id));
        self.namespaces.retain(|id| snapshot.contains(id));
        self.cpu_rates.retain(|id| snapshot.contains(id));
    }
}

/// Takes a look for `verb` on a blocking thread.
///
/// # Errors
/// `DeadlineExceeded` if the kernel does not answer; `Unavailable` until the engine has been
/// reached once.
pub async fn look<T: Send + 'static>(
    shim: &Shim,
    verb: &'static str,
    work: impl FnOnce(&mut Look, &Snapshot) -> T + Send + 'static,
) -> Result<T, Error> {
    let stats = Arc::clone(&shim.stats);
    let snapshot = shim.model.snapshot();
    let root_dir = shim.root_dir()?;
    stats.layers.ask();
    let permits = Arc::clone(&stats.permits);
    let task = async move {
        let permit = permits.acquire_owned().await;
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            stats.retain(&snapshot);
            work(&mut Look::new(stats, root_dir), &snapshot)
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
