//! Which pods may keep what their containers have for themselves.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::ContainerState;
use kubelet_pod_spec::identity::PodUid;
use kubelet_resource_managers::ResourceManagers;

use crate::{
    active_pods::active_pods, pleg::Pleg, pod::manager::PodManager, pod_syncer::Syncer,
    pod_worker::PodWorkers, status::StatusManager,
};

/// Active pods, and pods that are gone from their source while their containers have not ended.
#[derive(Clone, Copy)]
pub(crate) struct ResourceHolders<'a> {
    pub(crate) managers: &'a ResourceManagers,
    pub(crate) pods: &'a PodManager,
    pub(crate) statuses: &'a StatusManager,
    pub(crate) workers: &'a PodWorkers<Syncer>,
    pub(crate) pleg: &'a Pleg,
}

impl ResourceHolders<'_> {
    /// Takes back what containers had that are gone. Every source must have been read.
    pub(crate) fn release_gone(&self) {
        let managers = self.managers;
        // On most nodes. Each admitted pod would list all others.
        if managers.holders().is_empty() {
            return;
        }
        managers.release_gone(&self.active_pods(), |uid| self.still_runs(uid));
    }

    /// The pods that have something, but are not active: their containers end, or, unless all pods
    /// are known, they may come from a source that was not read yet.
    pub(crate) fn ending(&self, all_are_known: bool) -> BTreeSet<PodUid> {
        let mut holders = self.managers.holders();
        if holders.is_empty() {
            return holders;
        }
        for pod in self.active_pods() {
            holders.remove(&PodUid::of(&pod));
        }
        holders.retain(|uid| !all_are_known || self.still_runs(uid));
        holders
    }

    /// Those pods that are not active, and have no running container. Every source must have been read.
    pub(crate) fn gone(&self, mut pods: BTreeSet<PodUid>) -> BTreeSet<PodUid> {
        if self.pleg.listing().at.is_none() {
            // Which of them run is not known yet.
            pods.clear();
        }
        if !pods.is_empty() {
            for pod in self.active_pods() {
                pods.remove(&PodUid::of(&pod));
            }
            pods.retain(|uid| !self.still_runs(uid));
        }
        pods
    }

    /// The active pods, and those in the runtime whose worker has not ended.
    pub(crate) fn known_pods(&self) -> Vec<PodUid> {
        let listing = self.pleg.listing();
        let ending = listing.records.keys();
        let ending = ending.filter(|uid| !self.workers.has_ended(uid)).cloned();
        let active = self.active_pods();
        let all: BTreeSet<PodUid> = active
            .iter()
            .map(|pod| PodUid::of(pod))
            .chain(ending)
            .collect();
        all.into_iter().collect()
    }

    fn active_pods(&self) -> Vec<Arc<Pod>> {
        active_pods(self.pods, self.statuses, self.workers)
    }

    fn still_runs(&self, uid: &PodUid) -> bool {
        let listing = self.pleg.listing();
        let record = listing.records.get(uid);
        let mut containers = record.iter().flat_map(|record| &record.containers);
        !self.workers.has_ended(uid)
            || containers.any(|container| container.state != ContainerState::Exited)
    }
}
