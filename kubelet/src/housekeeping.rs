//! Cleans up what belongs to no pod (any more), in the runtime and on disk.

mod cgroups;
mod directories;
mod orphan_metrics;

use std::sync::Arc;

use kubelet_host::local_node::LocalNode;
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_prober::ProbeManager;
use kubelet_volume::VolumeManager;
use tracing::info;

use self::directories::ScanInput;
pub(crate) use self::{
    cgroups::LeftoverCgroups, directories::Directories, orphan_metrics::OrphanMetrics,
};
use crate::{
    pleg::Pleg,
    pod::{manager::PodManager, mirror::MirrorPods, removals::Removals},
    pod_syncer::Syncer,
    pod_worker::PodWorkers,
};

/// The housekeeping of the sync loop. It runs only once every source was read: before that, a pod
/// without a source may be one that was not read yet.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) node: Arc<LocalNode>,
    pub(crate) pods: Arc<PodManager>,
    pub(crate) workers: Arc<PodWorkers<Syncer>>,
    pub(crate) probes: Arc<ProbeManager>,
    pub(crate) pleg: Arc<Pleg>,
    pub(crate) volumes: Arc<VolumeManager>,
    /// None without an API server.
    pub(crate) mirrors: Option<Arc<MirrorPods>>,
    pub(crate) directories: Directories,
    pub(crate) cgroups: LeftoverCgroups,
    pub(crate) removals: Removals,
    pub(crate) orphans: Arc<OrphanMetrics>,
}

impl Housekeeping {
    /// Processes the last list of the runtime, and from time to time the directories. Does not
    /// block: workers and other tasks do the work.
    /// `waits` tells which pods are not started yet.
    pub(crate) fn run(&mut self, waits: impl Fn(&PodUid) -> bool) {
        self.remove_orphaned_mirrors();
        let listing = self.pleg.listing();
        let Some(listed) = listing.at else {
            return;
        };
        self.workers.reap(listed);
        self.probes.cleanup(|uid| self.workers.is_known(uid));
        for (uid, record) in &listing.records {
            // A pod that waits keeps the containers that ended before.
            let is_kept = waits(uid) && !record.has_running();
            if self.workers.is_known(uid) || is_kept {
                continue;
            }
            let full_name = format!("{}_{}", record.name, record.namespace);
            info!(pod = full_name, pod_uid = %uid, "terminating an orphaned pod");
            self.workers.kill_orphan(uid, full_name);
        }
        let node = Arc::clone(&self.node);
        let (pods, pleg) = (Arc::clone(&self.pods), Arc::clone(&self.pleg));
        let workers = Arc::clone(&self.workers);
        // Evaluated again for each directory and cgroup: a pod is known before it has one.
        let keep = move |uid: &PodUid| {
            pods.get(uid).is_some()
                || workers.is_known(uid)
                || pleg.listing().records.contains_key(uid)
        };
        self.cgroups.clean(keep.clone());
        let input = ScanInput {
            keep,
            node,
            volumes: Arc::clone(&self.volumes),
            listing: Arc::clone(&listing),
            removals: self.removals.clone(),
            orphans: Arc::clone(&self.orphans),
        };
        self.directories.scan_if_due(input);
    }

    /// A mirror pod stays until its static pod has ended.
    fn remove_orphaned_mirrors(&self) {
        let Some(mirrors) = &self.mirrors else {
            return;
        };
        for mirror in self.pods.orphaned_mirrors() {
            if !self.workers.has_static(&identity::full_name(&mirror)) {
                mirrors.remove(&mirror);
            }
        }
    }
}
