//! The collector of containers and sandboxes.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::runtime::v1;
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::{CriClient, CriError};
use kubelet_host::clock;
use kubelet_pod_spec::identity::PodUid;
use kubelet_traces::{garbage_collection, traced};
use tokio::{sync::Mutex, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    error::ContainerGcError,
    host::PodStates,
    options::ContainerGcOptions,
    plan::{self, ContainerCandidate, ContainerReason, DeadContainer, SandboxCandidate},
};

/// Between collections, as upstream.
const PERIOD: Duration = Duration::from_secs(60);

/// Removes dead containers and sandboxes.
pub struct ContainerCollector {
    cri: CriClient,
    options: ContainerGcOptions,
    pod_logs_dir: PathBuf,
    events: EventRecorder,
    pods: Arc<dyn PodStates>,
    /// Held during a collection.
    turn: Mutex<()>,
}

/// What a collection has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemovedContainers {
    /// The number of containers.
    pub containers: usize,
    /// The number of sandboxes.
    pub sandboxes: usize,
}

/// What a collection would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerCandidates {
    /// The containers, in the order of their removal.
    pub containers: Vec<ContainerCandidate>,
    /// The sandboxes, which are removed after them.
    pub sandboxes: Vec<SandboxCandidate>,
}

/// The pods whose dead containers are all removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gone<'a> {
    /// Those that need nothing any more.
    Removable,
    /// Those that have ended, too.
    Ended,
    /// These, too, once they have ended.
    These(&'a [PodUid]),
}

impl fmt::Debug for ContainerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerCollector")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ContainerCollector {
    /// A collector of containers, whose logs are below `pod_logs_dir`.
    pub fn new(
        cri: CriClient,
        options: ContainerGcOptions,
        pod_logs_dir: &Path,
        events: EventRecorder,
        pods: Arc<dyn PodStates>,
    ) -> Self {
        Self {
            cri,
            options,
            pod_logs_dir: pod_logs_dir.to_owned(),
            events,
            pods,
            turn: Mutex::default(),
        }
    }

    /// Collects every minute until cancelled, at first at once.
    pub async fn run(&self, cancel: CancellationToken) {
        let work = async {
            let mut has_failed = false;
            loop {
                if !self.pods.may_have_dead() {
                    sleep(PERIOD).await;
                    continue;
                }
                match self.collect().await {
                    Ok(_) if has_failed => {
                        has_failed = false;
                        info!("the collection of containers works again");
                    }
                    Ok(_) => {}
                    Err(error) => {
                        has_failed = true;
                        error!(%error, "the collection of containers failed");
                        let events = &self.events;
                        events.warning(Subject::Node, reason::CONTAINER_GC_FAILED, &error);
                    }
                }
                sleep(PERIOD).await;
            }
        };
        cancel.run_until_cancelled(work).await;
    }

    /// Removes the dead containers that exceed the limits, those of pods that no longer need them,
    /// and sandboxes without containers.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn collect(&self) -> Result<RemovedContainers, ContainerGcError> {
        let span = garbage_collection("Containers/GarbageCollect");
        traced(span, self.remove(Gone::Removable)).await
    }

    /// As [`Self::collect`], but removes all dead containers and sandboxes of pods that have ended,
    /// too, which still have a status to report.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn remove_all_unused(&self) -> Result<RemovedContainers, ContainerGcError> {
        info!("removing all unused containers");
        self.remove(Gone::Ended).await
    }

    /// As [`Self::collect`], but removes all dead containers and sandboxes of these pods, too, if they
    /// have ended.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn remove_of(&self, pods: &[PodUid]) -> Result<RemovedContainers, ContainerGcError> {
        self.remove(Gone::These(pods)).await
    }

    /// What [`Self::collect`] would remove now. Changes nothing.
    ///
    /// # Errors
    /// The runtime does not answer.
    pub async fn candidates(&self) -> Result<ContainerCandidates, ContainerGcError> {
        let (mut containers, sandboxes) = self.list().await?;
        let removed = self.dead(&containers, &sandboxes, Gone::Removable);
        let ids: BTreeSet<&str> = removed.iter().map(|(it, _)| it.id.as_str()).collect();
        containers.retain(|container| !ids.contains(container.id.as_str()));
        let dead = self.dead_sandboxes(&containers, &sandboxes, Gone::Removable);
        let dead = dead.into_iter().map(|(pod_uid, id)| SandboxCandidate {
            id: id.to_owned(),
            pod_uid,
        });
        let sandboxes = dead.collect();
        let removed = removed.into_iter();
        let containers = removed.map(|(container, reason)| ContainerCandidate {
            id: container.id,
            pod_uid: container.pod_uid,
            name: container.name,
            reason,
        });
        Ok(ContainerCandidates {
            containers: containers.collect(),
            sandboxes,
        })
    }

    async fn remove(&self, gone: Gone<'_>) -> Result<RemovedContainers, ContainerGcError> {
        let _turn = self.turn.lock().await;
        let mut removed = RemovedContainers::default();
        let (mut containers, mut sandboxes) = self.list().await?;
        let dead = self.dead(&containers, &sandboxes, gone);
        let is_listed_again = !dead.is_empty();
        for (container, why) in dead {
            let (container_id, pod_uid) = (&container.id, &container.pod_uid);
            match self.remove_container(&container).await {
                Ok(()) => {
                    let name = &container.name;
                    info!(container_id, container = name, %pod_uid, ?why, "removed a dead container");
                    removed.containers += 1;
                }
                Err(error) => {
                    warn!(container_id, %pod_uid, %error, "cannot remove a dead container");
                    self.check_runtime(&error).await?;
                }
            }
        }
        if is_listed_again {
            (containers, sandboxes) = self.list().await?;
        }
        for (pod_uid, sandbox_id) in self.dead_sandboxes(&containers, &sandboxes, gone) {
            match self.remove_sandbox(sandbox_id).await {
                Ok(()) => {
                    info!(sandbox_id, %pod_uid, "removed a dead sandbox");
                    removed.sandboxes += 1;
                }
                Err(error) => {
                    warn!(sandbox_id, %pod_uid, %error, "cannot remove a dead sandbox");
                    self.check_runtime(&error).await?;
                }
            }
        }
        Ok(removed)
    }

    async fn list(&self) -> Result<(Vec<v1::Container>, Vec<v1::PodSandbox>), ContainerGcError> {
        // Containers first: a sandbox that is listed as not ready gets no more of them.
        let containers = self.cri.list_containers().await;
        let containers = containers.map_err(ContainerGcError::List)?;
        let sandboxes = self.cri.list_pod_sandboxes().await;
        Ok((containers, sandboxes.map_err(ContainerGcError::List)?))
    }

    fn dead(
        &self,
        containers: &[v1::Container],
        sandboxes: &[v1::PodSandbox],
        gone: Gone<'_>,
    ) -> Vec<(DeadContainer, ContainerReason)> {
        let min_age = self.options.min_age;
        let dead = plan::dead_containers(containers, sandboxes, min_age, clock::now());
        plan::containers(dead, &self.options, |uid| self.is_gone(uid, gone))
    }

    fn dead_sandboxes<'a>(
        &self,
        containers: &[v1::Container],
        sandboxes: &'a [v1::PodSandbox],
        gone: Gone<'_>,
    ) -> Vec<(PodUid, &'a str)> {
        let used = containers.iter();
        let used = used.map(|container| container.pod_sandbox_id.as_str());
        plan::sandboxes(sandboxes, &used.collect(), |uid| self.is_gone(uid, gone))
    }

    fn is_gone(&self, uid: &PodUid, gone: Gone<'_>) -> bool {
        let is_meant = match gone {
            Gone::Removable => false,
            Gone::Ended => true,
            Gone::These(pods) => pods.contains(uid),
        };
        self.pods.all_sources_ready()
            && (self.pods.is_removable(uid) || (is_meant && self.pods.is_ended(uid)))
    }

    /// Removes a container, and then its log.
    async fn remove_container(&self, container: &DeadContainer) -> Result<(), CriError> {
        // In an unknown state, it may be running.
        if let Some(grace_period) = container.grace_period {
            self.cri.stop_container(&container.id, grace_period).await?;
        }
        self.cri.remove_container(&container.id).await?;
        if let Some(log) = &container.log {
            log.remove(&self.pod_logs_dir).await;
        }
        Ok(())
    }

    /// Stops a sandbox, which releases its network if that has not happened yet, and removes it.
    async fn remove_sandbox(&self, id: &str) -> Result<(), CriError> {
        self.cri.stop_pod_sandbox(id).await?;
        self.cri.remove_pod_sandbox(id).await
    }

    /// Whether the runtime still answers after a failed call: each further call to one that hangs
    /// would take until its deadline.
    async fn check_runtime(&self, failed: &CriError) -> Result<(), ContainerGcError> {
        if failed.is_answer() {
            return Ok(());
        }
        let answer = self.cri.version().await.map(drop);
        answer.map_err(ContainerGcError::Away)
    }
}
