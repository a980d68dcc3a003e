//! Keeps the CPUs of running containers as the CPU manager decides, and takes back what containers
//! had for themselves that are gone.

use std::time::Duration;

use kubelet_pod_spec::identity::PodUid;
use kubelet_runtime::RuntimeManager;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::{
    active_pods::pods_with_containers, pleg::PodCache, pod::manager::PodManager,
    pod_syncer::Syncer, pod_worker::PodWorkers, status::StatusManager,
};

/// Keeps the CPUs of running containers.
pub(crate) struct CpuSetKeeper<'a> {
    pub(crate) runtime: &'a RuntimeManager,
    pub(crate) pods: &'a PodManager,
    pub(crate) statuses: &'a StatusManager,
    pub(crate) workers: &'a PodWorkers<Syncer>,
    pub(crate) cache: &'a PodCache,
    pub(crate) sources_ready: &'a (dyn Fn() -> bool + Send + Sync),
    /// Between two comparisons if nothing changes.
    pub(crate) period: Duration,
}

impl CpuSetKeeper<'_> {
    /// Runs until cancelled. Does nothing without managers.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let managers = self.runtime.managers();
        if !managers.manages_cpus() && !managers.manages_memory() {
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
        let pods = pods_with_containers(self.pods, self.statuses, self.workers, self.runtime);
        let managers = self.runtime.managers();
        if (self.sources_ready)() {
            managers.release_gone(&pods);
        }
        if let Err(error) = managers.save().await {
            warn!(%error, "cannot save which CPUs and memory containers have; retrying");
        }
        let uids = pods.iter().map(|pod| PodUid::of(pod));
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
