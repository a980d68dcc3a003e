//! What sandboxes and containers use, read from the kernel when somebody asks: the engine
//! is not asked, and nothing runs when nobody does.
//!
//! A verb takes one [`Look`] for all that it lists, on a thread that may block. Only the
//! size of writable layers, which takes a walk through their files, is measured in the
//! background ([`writable_layer`]).

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

/// Files of the kernel that are not read by then hang.
const LIMIT: Duration = Duration::from_secs(10);
/// Looks under way at most: those that hang do not use up all threads.
const CONCURRENCY: usize = 4;

/// What is remembered between two looks.
#[derive(Debug)]
pub struct Stats {
    processes: Arc<Processes>,
    cgroups: Finder,
    namespaces: Namespaces,
    cpu_rates: CpuRates,
    permits: Arc<Semaphore>,
    /// What the containers have written.
    pub layers: Arc<WritableLayers>,
}

impl Stats {
    /// Starts what measures writable layers, until `stop`.
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

    /// Forgets what `snapshot` does not have.
    fn retain(&self, snapshot: &Snapshot) {
        self.cgroups.retain(|id| snapshot.contains(id));
        self.namespaces.retain(|id| snapshot.contains(id));
        self.cpu_rates.retain(|id| snapshot.contains(id));
    }
}

/// Takes a look for `verb` on a thread that may block.
///
/// # Errors
/// `DeadlineExceeded` when the kernel does not answer; `Unavailable` until the engine was
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
