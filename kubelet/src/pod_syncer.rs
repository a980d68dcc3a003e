//! What pod workers do to pods: volumes, the runtime and the status together.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use crate::{
    config::options::Options,
    pleg::{Pleg, PodCache},
    pod::{
        directory,
        identity::{self, PodUid},
        manager::PodManager,
    },
    pod_worker::{PodSyncer, Subject, SyncOutcome, WorkerError},
    prober::ProbeManager,
    repeatable,
    runtime::{RuntimeManager, pod_state::PodState, pod_status::PodStatus},
    status::{Facts, Phase, StatusManager},
    volume::{self, VolumeManager},
};

/// A directory of a pod that the file system does not let be.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path:?}: {source}")]
struct DirectoryError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Does the workers' work with the parts of the kubelet.
#[derive(Debug)]
pub(crate) struct Syncer {
    pub(crate) options: Arc<Options>,
    pub(crate) pods: Arc<PodManager>,
    pub(crate) runtime: Arc<RuntimeManager>,
    pub(crate) volumes: Arc<VolumeManager>,
    pub(crate) cache: Arc<PodCache>,
    pub(crate) pleg: Arc<Pleg>,
    pub(crate) statuses: Arc<StatusManager>,
    pub(crate) probes: Arc<ProbeManager>,
}

impl Syncer {
    fn report(&self, pod: &Pod, status: &PodStatus, state: &PodState) -> Phase {
        self.statuses.update(
            pod,
            Facts {
                status,
                waiting: &state.waiting(),
                runtime_name: self.runtime.name(),
                ending: false,
                verdict: None,
                resize: self.runtime.resize_report(&PodUid::of(pod)).as_ref(),
            },
        )
    }

    /// Takes down the volumes of a pod and removes its directory.
    async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), WorkerError> {
        self.volumes.wait_for_unmount(uid).await?;
        let dir = directory::pod_dir(&self.options, uid);
        blocking(move || Ok(volume::disk::remove_pod_dir(&dir)?)).await
    }
}

impl PodSyncer for Syncer {
    async fn status(
        &self,
        uid: &PodUid,
        newer_than: Option<Instant>,
    ) -> Result<Arc<PodStatus>, WorkerError> {
        if newer_than.is_some() {
            self.pleg.request_relist();
        }
        Ok(self.cache.get_newer_than(uid, newer_than).await?)
    }

    async fn sync_pod(
        &self,
        pod: Arc<Pod>,
        status: Arc<PodStatus>,
        state: Arc<PodState>,
    ) -> Result<SyncOutcome, WorkerError> {
        let pod = self.runtime.grant(pod, &status).await;
        if self.report(&pod, &status, &state).is_terminal() {
            return Ok(SyncOutcome {
                terminal: true,
                ..SyncOutcome::default()
            });
        }
        let pod_dir = directory::pod_dir(&self.options, &PodUid::of(&pod));
        let made = pod_dir.clone();
        blocking(move || {
            std::fs::create_dir_all(&made).map_err(|source| DirectoryError {
                action: "create the pod's directory",
                path: made,
                source,
            })?;
            Ok(())
        })
        .await?;
        let volumes = self.volumes.wait_for_attach_and_mount(&pod).await?;
        self.probes.add_pod(&pod);
        let synced = self
            .runtime
            .sync_pod(&pod, &status, &state, &volumes, &pod_dir)
            .await;
        // Why containers wait is known now.
        self.report(&pod, &status, &state);
        self.probes.prompt_readiness(&PodUid::of(&pod));
        let synced = synced?;
        if synced.resized {
            // The list does not show it.
            self.pleg.request_inspection(&PodUid::of(&pod));
        }
        if synced.changed && !synced.failed {
            self.pleg.request_relist();
        }
        Ok(SyncOutcome {
            terminal: false,
            changed: synced.changed || synced.resized,
            failed: synced.failed,
            // What came of a resize is read back and shown.
            retry_after: if synced.resized && !synced.failed {
                Some(Duration::ZERO)
            } else {
                synced.retry_after
            },
        })
    }

    async fn terminate_pod(
        &self,
        subject: Subject,
        status: Arc<PodStatus>,
        grace: Option<Duration>,
    ) -> Result<(), WorkerError> {
        self.probes.stop_liveness_and_startup(&subject.uid);
        let pod = subject.pod.as_deref();
        self.runtime.kill_pod(pod, &status, grace).await?;
        self.probes.remove_pod(&subject.uid);
        Ok(())
    }

    async fn settle_pod(
        &self,
        subject: Subject,
        status: Arc<PodStatus>,
    ) -> Result<(), WorkerError> {
        if status.is_running() {
            // Somebody else started something meanwhile.
            let pod = subject.pod.as_deref();
            self.runtime.kill_pod(pod, &status, None).await?;
        }
        if let Some(pod) = &subject.pod {
            self.statuses.update(
                pod,
                Facts {
                    status: &status,
                    waiting: &std::collections::BTreeMap::new(),
                    runtime_name: self.runtime.name(),
                    ending: true,
                    verdict: None,
                    resize: None,
                },
            );
        }
        self.runtime.ungrant(&subject.uid);
        Ok(self.volumes.wait_for_unmount(&subject.uid).await?)
    }

    async fn remove_pod(
        &self,
        subject: Subject,
        status: Arc<PodStatus>,
    ) -> Result<(), WorkerError> {
        self.runtime.remove_pod(&status).await?;
        self.pleg.request_relist();
        self.remove_pod_dir(&subject.uid).await?;
        if let Some(pod) = &subject.pod {
            let dir = directory::log_dir(&self.options, pod);
            blocking(move || remove_dir(dir)).await?;
        }
        // What was an orphan to the runtime may be a pod that was rejected: that
        // keeps its status. One that comes back begins with none.
        if subject.pod.is_some() || self.pods.get(&subject.uid).is_none() {
            self.statuses.remove(&subject.uid);
        }
        tracing::debug!(
            pod = subject.pod.as_deref().map(identity::full_name), pod_uid = %subject.uid,
            "removed the pod's files"
        );
        Ok(())
    }
}

/// Runs what blocks on the file system where it blocks nobody.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorkerError> + Send + 'static,
) -> Result<T, WorkerError> {
    repeatable::blocking(work).await?
}

/// Removes a directory with all that is in it; one that is not there is fine.
pub(crate) fn remove_dir(path: PathBuf) -> Result<(), WorkerError> {
    match std::fs::remove_dir_all(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(DirectoryError {
            action: "remove",
            path,
            source,
        }
        .into()),
        _ => Ok(()),
    }
}
