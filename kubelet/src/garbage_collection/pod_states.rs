//! The states of pods, for the collector of containers.

use std::sync::Arc;

use kubelet_garbage_collector::PodStates;
use kubelet_pod_spec::identity::PodUid;

use crate::{pleg::Pleg, pod_syncer::Syncer, pod_worker::PodWorkers};

/// The states of pods as their workers have them.
pub(crate) struct WorkerStates {
    pub(crate) workers: Arc<PodWorkers<Syncer>>,
    pub(crate) pleg: Arc<Pleg>,
    pub(crate) sources_ready: Arc<dyn Fn() -> bool + Send + Sync>,
}

impl PodStates for WorkerStates {
    fn all_sources_ready(&self) -> bool {
        (self.sources_ready)()
    }

    fn may_have_dead(&self) -> bool {
        let listing = self.pleg.listing();
        let mut records = listing.records.values();
        listing.at.is_none() || records.any(|record| record.has_dead())
    }

    fn is_removable(&self, uid: &PodUid) -> bool {
        self.workers.is_removable(uid)
    }

    fn is_ended(&self, uid: &PodUid) -> bool {
        self.workers.has_ended(uid)
    }
}
