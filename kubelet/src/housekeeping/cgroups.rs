//! Removes the cgroups of pods that no longer exist.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use kubelet_container_manager::{ContainerManager, PodCgroups};
use kubelet_pod_spec::identity::PodUid;
use kubelet_volume::VolumeManager;
use tracing::{debug, info, warn};

/// The clean-up of the pods' cgroups, in one task at a time.
#[derive(Debug)]
pub(crate) struct LeftoverCgroups {
    cgroups: Arc<PodCgroups>,
    volumes: Arc<VolumeManager>,
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
    pub(crate) fn new(cgroups: Arc<PodCgroups>, volumes: Arc<VolumeManager>) -> Self {
        Self {
            cgroups,
            volumes,
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
        tokio::spawn(async move {
            let _turn = turn;
            if let Some(manager) = cgroups.manager() {
                remove_leftovers(manager, &volumes, &keep).await;
            }
        });
    }
}

async fn remove_leftovers(
    manager: &ContainerManager,
    volumes: &VolumeManager,
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
        let done = match volumes.has_volumes(uid).await {
            Ok(false) if !keep(uid) => {
                let removed = manager.remove_leftover(uid, name).await;
                removed.inspect(|()| info!(pod_uid = %uid, cgroup = %name, "removed the cgroup of an orphaned pod"))
            }
            Ok(false) => continue,
            Ok(true) => manager.slow_down(name).await,
            Err(error) => {
                debug!(pod_uid = %uid, %error, "cannot tell whether an orphaned pod has volumes");
                continue;
            }
        };
        if let Err(error) = done {
            warn!(pod_uid = %uid, cgroup = %name, %error, "cannot clean up the cgroup of an orphaned pod");
        }
    }
}
