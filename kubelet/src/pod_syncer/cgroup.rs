//! The cgroups of pods: created before their sandboxes, removed after their volumes.

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{Subject, reason};
use kubelet_container_manager::{ContainerManager, PodCgroup, cgroup::CgroupError};
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_pod_spec::identity::PodUid;
use tracing::warn;

use super::Syncer;
use crate::pod_worker::WorkerError;

/// Whether a pod can be started in its cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CgroupReadiness {
    /// It can.
    Ready,
    /// Its containers ran without a cgroup and were killed. Their end must be read first.
    Killed,
}

/// The pod's cgroup could not be created. The message is upstream's.
#[derive(Debug, thiserror::Error)]
#[error("unable to ensure pod container exists: {0}")]
struct NoPodCgroup(#[source] CgroupError);

impl Syncer {
    /// Creates the pod's cgroup, unless it exists. Containers outside it are killed first, as
    /// upstream, but not those that an earlier kubelet started without cgroups of pods.
    pub(super) async fn ensure_cgroup(
        &self,
        pod: &Pod,
        status: &PodStatus,
    ) -> Result<CgroupReadiness, WorkerError> {
        let Some(manager) = self.cgroups.manager() else {
            return Ok(CgroupReadiness::Ready);
        };
        let ensured = self.find_or_create(manager, pod, status.is_running()).await;
        let readiness = ensured.map_err(NoPodCgroup).inspect_err(|error| {
            let reason = reason::FAILED_TO_CREATE_POD_CONTAINER;
            self.events.warning(Subject::Pod(pod), reason, error);
        })?;
        if readiness == CgroupReadiness::Killed {
            warn!("the pod's cgroup was removed; killing its containers and creating it again");
            self.runtime.kill_pod(Some(pod), status, None).await?;
        }
        Ok(readiness)
    }

    async fn find_or_create(
        &self,
        manager: &ContainerManager,
        pod: &Pod,
        is_running: bool,
    ) -> Result<CgroupReadiness, CgroupError> {
        match manager.find(pod).await? {
            PodCgroup::Present => return Ok(CgroupReadiness::Ready),
            PodCgroup::Removed if is_running => return Ok(CgroupReadiness::Killed),
            PodCgroup::Absent if is_running => {
                if manager.leave_without(&PodUid::of(pod)) {
                    warn!(
                        "the pod runs without a cgroup of its own, because it was started without; \
                         its limits as a whole are not enforced until its sandbox is created again"
                    );
                }
                return Ok(CgroupReadiness::Ready);
            }
            PodCgroup::Incomplete | PodCgroup::Removed | PodCgroup::Absent => {}
        }
        manager.create(pod).await?;
        self.cgroups.announce_change();
        Ok(CgroupReadiness::Ready)
    }

    /// Removes the cgroup of a pod that has ended, with processes that were left in it.
    pub(super) async fn remove_cgroup(&self, pod: &Pod) -> Result<(), WorkerError> {
        if let Some(manager) = self.cgroups.manager() {
            manager.remove(pod).await?;
            self.cgroups.announce_change();
        }
        Ok(())
    }
}
