//! Removes the cgroups of pods that no longer exist.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use kubelet_container_manager::{ContainerManager, PodCgroups};
use kubelet_pod_spec::identity::PodUid;
use kubelet_volume::VolumeManager;
use tracing::{debug, info, warn};

use crate::pod::removals::Removals;

/// The clean-up of the pods' cgroups, in one task at a time.
#[derive(Debug)]
pub(crate) struct LeftoverCgroups {
    cgroups: Arc<PodCgroups>,
    volumes: Arc<VolumeManager>,
    /// Tells the pods' workers which removals are in progress.
    removals: Removals,
    is_running: Arc<AtomicBool>,
}

/// Ends the turn of a clean-up, however it ends.
struct Turn(Arc<AtomicBool>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl LeftoverCgroups {
    pub(crate) fn new(
        cgroups: Arc<PodCgroups>,
        volumes: Arc<VolumeManager>,
        removals: Removals,
    ) -> Self {
        Self {
            cgroups,
            volumes,
            removals,
            is_running: Arc::default(),
        }
    }

    /// Starts to remove the cgroups of the pods that are not to `keep`, unless the last clean-up is
    /// still running.
    pub(super) fn clean<K>(&self, keep: K)
    where
        K: Fn(&PodUid) -> bool + Send + Sync + 'static,
    {
        if self.cgroups.manager().is_none() || self.is_running.swap(true, Ordering::AcqRel) {
            return;
        }
        let turn = Turn(Arc::clone(&self.is_running));
        let (cgroups, volumes) = (Arc::clone(&self.cgroups), Arc::clone(&self.volumes));
        let removals = self.removals.clone();
        tokio::spawn(async move {
            let _turn = turn;
            if let Some(manager) = cgroups.manager() {
                remove_leftovers(manager, &volumes, &removals, &keep).await;
            }
        });
    }
}

async fn remove_leftovers(
    manager: &ContainerManager,
    volumes: &VolumeManager,
    removals: &Removals,
    keep: &(impl Fn(&PodUid) -> bool + Sync),
) {
    let all = match manager.all().await {
        Ok(all) => all,
        Err(error) => {
            warn!(%error, "cannot list the cgroups of pods");
            return;
        }
    };
    for (uid, name) in all.iter().filter(|(uid, _)| !keep(uid)) {
        // What memory-backed volumes use would be charged to the cgroup above.
        let has_volumes = match volumes.has_volumes(uid).await {
            Ok(has_volumes) => has_volumes,
            Err(error) => {
                debug!(pod_uid = %uid, %error, "cannot tell whether an orphaned pod has volumes");
                continue;
            }
        };
        // A pod that comes back waits for the end, and is not killed in its old cgroup.
        let _removal = removals.begin(uid);
        if keep(uid) {
            continue;
        }
        let done = if has_volumes {
            manager.slow_down(name).await
        } else {
            manager.remove_leftover(uid, name).await
        };
        match done {
            Ok(()) if has_volumes => {}
            Ok(()) => {
                info!(pod_uid = %uid, cgroup = %name, "removed the cgroup of an orphaned pod");
            }
            Err(error) => warn!(
                pod_uid = %uid, cgroup = %name, %error,
                "cannot clean up the cgroup of an orphaned pod"
            ),
        }
    }
}
