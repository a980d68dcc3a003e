//! Keeps the CPUs of running containers as the CPU manager decides, and takes back what containers
//! had for themselves that are gone.

use std::time::Duration;

use kubelet_runtime::RuntimeManager;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{pleg::PodCache, resource_holders::ResourceHolders};

/// Keeps the CPUs of running containers. Runs in the task of the sync loop, which does not process
/// a part of an update while this looks.
pub(crate) struct CpuSetKeeper<'a> {
    pub(crate) runtime: &'a RuntimeManager,
    pub(crate) holders: ResourceHolders<'a>,
    pub(crate) cache: &'a PodCache,
    /// Whether something can be taken back: all pods are known.
    pub(crate) releases: &'a (dyn Fn() -> bool + Send + Sync),
    /// Between two comparisons if nothing changes.
    pub(crate) period: Duration,
}

impl CpuSetKeeper<'_> {
    /// Runs until cancelled. Does nothing without managers.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let managers = self.holders.managers;
        if !managers.manages_cpus() && !managers.manages_memory() && managers.devices().is_none() {
            return;
        }
        let work = async {
            loop {
                tokio::select! {
                    () = tokio::time::sleep(self.period) => {}
                    () = managers.changed() => {}
                }
                self.look().await;
            }
        };
        cancel.run_until_cancelled(work).await;
    }

    async fn look(&self) {
        if (self.releases)() {
            self.holders.release_gone();
        }
        if let Err(error) = self.holders.managers.save().await {
            warn!(%error, "cannot save which CPUs, memory and devices containers have; retrying");
        }
        if !self.holders.managers.manages_cpus() {
            return;
        }
        let uids = self.holders.known_pods().into_iter();
        let statuses: Vec<_> = uids
            .filter_map(|uid| {
                let status = self.cache.get(&uid).ok()?;
                Some((uid, status))
            })
            .collect();
        let statuses = statuses
            .iter()
            .map(|(uid, status)| (uid.clone(), &**status));
        self.runtime.update_cpu_sets(statuses).await;
    }
}
