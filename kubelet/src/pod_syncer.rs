//! The operations of pod workers on pods: volumes, the runtime and the status together.

mod cgroup;
mod reports;
mod starts;

use std::{io, os::unix::fs::DirBuilderExt as _, path::PathBuf, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Pod, PodStatus as ApiStatus};
use kubelet_api_client::events::{self, EventRecorder, reason};
use kubelet_container_manager::PodCgroups;
use kubelet_cri_client::{pod_status::PodStatus, readiness::RuntimeReadiness};
use kubelet_dra_manager::DraManager;
use kubelet_host::{clock, local_node::LocalNode, repeatable};
use kubelet_pod_spec::{directory, identity::PodUid, phase::Phase};
use kubelet_prober::ProbeManager;
use kubelet_runtime::{
    RuntimeManager, grace_period,
    pod_state::{PodState, RestartDelays},
};
use kubelet_volume::{VolumeError, VolumeManager};
use tokio::time::Instant;
use tracing::{info, warn};

use self::cgroup::CgroupReadiness;
pub(crate) use self::starts::PodStarts;
use crate::{
    lifecycle::{Admission, NodeSource, deadline},
    pleg::{Pleg, PodCache},
    pod::{manager::PodManager, mirror::MirrorPods, rejection::Rejection, removals::Removals},
    pod_worker::{Kill, PodSyncer, SyncOutcome, WorkerError, WorkerPod},
    status::{StatusInputs, StatusManager, Verdict},
};

/// The shortest grace period of a pod, as upstream.
const MINIMUM_POD_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Between two looks at whether the runtime is ready.
const RUNTIME_RETRY: Duration = Duration::from_secs(5);

/// The outcome of a sync of a pod that has ended.
const DONE: SyncOutcome = SyncOutcome {
    terminal: true,
    changed: false,
    failed: false,
    retry_after: None,
};

/// The outcome of a sync that waits for the runtime, like the sync loop.
const WAITS: SyncOutcome = SyncOutcome {
    terminal: false,
    changed: false,
    failed: false,
    retry_after: Some(RUNTIME_RETRY),
};

/// The outcome of a sync that killed the pod's containers to start them again.
const KILLED: SyncOutcome = SyncOutcome {
    terminal: false,
    changed: true,
    failed: false,
    retry_after: None,
};

/// A failed operation on a directory of a pod.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path:?}: {source}")]
struct DirectoryError {
    action: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The pod network is not ready. The message is upstream's.
#[derive(Debug, thiserror::Error)]
#[error("network is not ready: {0}")]
struct NetworkNotReady(String);

/// Does the work of pod workers with the parts of the kubelet.
#[derive(Debug)]
pub(crate) struct Syncer {
    pub(crate) local_node: Arc<LocalNode>,
    pub(crate) restart_delays: RestartDelays,
    pub(crate) admission: Admission,
    pub(crate) node: Arc<NodeSource>,
    pub(crate) pods: Arc<PodManager>,
    pub(crate) runtime: Arc<RuntimeManager>,
    pub(crate) cgroups: Arc<PodCgroups>,
    pub(crate) dra: DraManager,
    pub(crate) volumes: Arc<VolumeManager>,
    pub(crate) cache: Arc<PodCache>,
    pub(crate) pleg: Arc<Pleg>,
    pub(crate) statuses: Arc<StatusManager>,
    pub(crate) probes: Arc<ProbeManager>,
    /// None without an API server.
    pub(crate) mirrors: Option<Arc<MirrorPods>>,
    pub(crate) events: EventRecorder,
    pub(crate) starts: Arc<PodStarts>,
    pub(crate) readiness: Arc<RuntimeReadiness>,
    /// Removals by housekeeping that are in progress.
    pub(crate) removals: Removals,
}

impl Syncer {
    /// Whether the pod, whose status was `before`, may run now.
    fn may_run(&self, pod: &Pod, before: Option<&ApiStatus>) -> Result<(), Rejection> {
        let known = before.or(pod.status.as_ref());
        let phase = known.and_then(|status| status.phase.as_deref());
        let is_pending = Phase::parse(phase) == Phase::Pending;
        self.admission
            .hold_back(pod, is_pending, &self.node.facts())
    }

    /// Does not run the pod, and kills what an earlier kubelet may have left running. A later sync
    /// checks again.
    async fn hold_back(
        &self,
        pod: &Pod,
        status: &PodStatus,
        before: Option<&ApiStatus>,
        why: &Rejection,
    ) -> Result<SyncOutcome, WorkerError> {
        if before.is_none_or(|before| before.message.as_ref() != Some(&why.message)) {
            warn!(
                reason = why.reason,
                message = why.message,
                "pod is not allowed to run yet"
            );
            self.events
                .warning(events::Subject::Pod(pod), &why.reason, &why.message);
        }
        let changed = status.is_running();
        if changed {
            self.runtime.kill_pod(Some(pod), status, None).await?;
        }
        Ok(SyncOutcome {
            terminal: false,
            changed,
            failed: true,
            retry_after: None,
        })
    }

    /// A pod without host network waits until the network is ready, before any slow work is done.
    fn wait_for_network(&self, pod: &Pod) -> Result<(), NetworkNotReady> {
        let spec = pod.spec.as_ref();
        let own_network = spec.is_some_and(|spec| spec.host_network == Some(true));
        let Some(problem) = self.readiness.network_problem().filter(|_| !own_network) else {
            return Ok(());
        };
        let error = NetworkNotReady(problem);
        let subject = events::Subject::Pod(pod);
        self.events
            .warning(subject, reason::NETWORK_NOT_READY, format_args!("{error}"));
        Err(error)
    }

    fn mirror(&self, pod: &Pod) {
        if let Some(mirrors) = &self.mirrors {
            mirrors.mirror(pod);
        }
    }

    /// The rest of the pod's active deadline, if it has one.
    fn deadline(&self, pod: &Pod) -> Option<Duration> {
        let status = self.statuses.get(&PodUid::of(pod))?;
        deadline::remaining(pod.spec.as_ref()?, status.start_time.as_ref(), clock::now())
    }

    /// Reports that the pod failed because its active deadline is over.
    fn end_at_deadline(&self, pod: &Pod, status: &PodStatus, state: &PodState) {
        info!("pod exceeded its active deadline");
        self.events.normal(
            events::Subject::Pod(pod),
            deadline::REASON,
            deadline::MESSAGE,
        );
        let verdict = Verdict {
            always_fails: true,
            reason: deadline::REASON.to_owned(),
            message: deadline::MESSAGE.to_owned(),
            disruption: None,
        };
        self.report(pod, status, state, Some(&verdict), None);
    }

    /// Reports that the pod failed because the node has no place for one of its volumes.
    fn reject(&self, pod: &Pod, status: &PodStatus, state: &PodState, why: &VolumeError) {
        let rejection = Rejection::new("VolumeAttachmentLimitExceeded", why.to_string());
        warn!(
            reason = rejection.reason,
            message = rejection.message,
            "pod rejected"
        );
        self.events.warning(
            events::Subject::Pod(pod),
            &rejection.reason,
            &rejection.message,
        );
        self.admission.count_rejection(&rejection);
        let verdict = Verdict {
            always_fails: true,
            message: format!("Pod was rejected: {}", rejection.message),
            reason: rejection.reason,
            disruption: None,
        };
        self.report(pod, status, state, Some(&verdict), None);
    }

    /// Creates the pod's directory, unless it exists, and returns its path.
    async fn make_pod_dir(&self, pod: &Pod) -> Result<PathBuf, WorkerError> {
        let pod_dir = directory::pod_dir(&self.local_node.root_dir, &PodUid::of(pod));
        let made = pod_dir.clone();
        blocking(move || {
            // Other users of the node must not read volumes.
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o750);
            builder.create(&made).map_err(|source| DirectoryError {
                action: "create the pod's directory",
                path: made,
                source,
            })?;
            Ok(())
        })
        .await
        .inspect_err(|error| {
            let message = format_args!("error making pod data directories: {error}");
            self.events
                .warning(events::Subject::Pod(pod), reason::FAILED, message);
        })?;
        Ok(pod_dir)
    }

    /// Unmounts the volumes of a pod and removes its directory.
    async fn remove_pod_dir(&self, uid: &PodUid) -> Result<(), WorkerError> {
        self.volumes.wait_for_unmount(uid).await?;
        let dir = directory::pod_dir(&self.local_node.root_dir, uid);
        let gone = dir.clone();
        let removed = kubelet_volume::blocking_on_own_files(move || {
            kubelet_volume::disk::remove_pod_dir(&gone)
        })
        .await;
        let Err(error) = removed else {
            return Ok(());
        };
        let unknown = self.volumes.unknown_volumes(uid).await?;
        let volume = unknown.first().ok_or(error)?;
        // The pod finishes anyway. Housekeeping keeps retrying.
        warn!(
            %volume, path = %dir.display(),
            "leaving a volume in place: this kubelet does not have its plugin"
        );
        Ok(())
    }
}

impl PodSyncer for Syncer {
    async fn status(
        &self,
        uid: &PodUid,
        newer_than: Option<Instant>,
    ) -> Result<Arc<PodStatus>, WorkerError> {
        if let Some(min) = newer_than {
            self.pleg.request(uid, min);
        }
        let status = self.cache.get_newer_than(uid, newer_than).await;
        if let (Err(error), Some(pod)) = (&status, self.pods.get(uid)) {
            let message = format_args!("error determining status: {error}");
            self.events
                .warning(events::Subject::Pod(&pod), reason::FAILED_SYNC, message);
        }
        Ok(status?)
    }

    async fn sync_pod(
        &self,
        pod: Arc<Pod>,
        status: Arc<PodStatus>,
        state: Arc<PodState>,
    ) -> Result<SyncOutcome, WorkerError> {
        if !self.readiness.runtime_problems().is_empty() {
            return Ok(WAITS);
        }
        state.begin_sync(&status);
        let pod = self.runtime.grant(&pod, &status);
        let before = self.statuses.get(&PodUid::of(&pod));
        let held_back = self.may_run(&pod, before.as_deref()).err();
        let phase = self.report(&pod, &status, &state, None, held_back.as_ref());
        if phase.is_terminal() {
            // An earlier kubelet may not have created the mirror pod.
            self.mirror(&pod);
            return Ok(DONE);
        }
        let deadline = self.deadline(&pod);
        if deadline == Some(Duration::ZERO) {
            self.end_at_deadline(&pod, &status, &state);
            return Ok(DONE);
        }
        if let Some(why) = &held_back {
            return self.hold_back(&pod, &status, before.as_deref(), why).await;
        }
        self.wait_for_network(&pod)?;
        self.mirror(&pod);
        self.removals.ended(&PodUid::of(&pod)).await;
        if self.ensure_cgroup(&pod, &status).await? == CgroupReadiness::Killed {
            return Ok(KILLED);
        }
        let pod_dir = self.make_pod_dir(&pod).await?;
        self.runtime.keep_grant(&PodUid::of(&pod)).await;
        let volumes = match self.volumes.wait_for_attach_and_mount(&pod).await {
            Err(error @ VolumeError::AttachLimitExceeded { .. }) => {
                self.reject(&pod, &status, &state, &error);
                return Ok(DONE);
            }
            volumes => volumes?,
        };
        self.probes.add_pod(&pod);
        let reported_ips = self.reported_ips(&PodUid::of(&pod));
        let sync = self
            .runtime
            .sync_pod(&pod, &status, &state, &volumes, &pod_dir, &reported_ips);
        let synced = self.sync_reported(&pod, &status, &state, sync).await;
        // The reasons why containers wait are known now.
        self.report(&pod, &status, &state, None, None);
        self.probes.prompt_readiness(&PodUid::of(&pod));
        let synced = synced?;
        if synced.resized {
            // The container list does not show a resize.
            self.pleg.request_inspection(&PodUid::of(&pod));
        }
        if synced.changed && !synced.failed {
            self.pleg.request(&PodUid::of(&pod), Instant::now());
        }
        // The result of a resize is read back and reported.
        let retry_after = if synced.resized && !synced.failed {
            Some(Duration::ZERO)
        } else {
            synced.retry_after
        };
        Ok(SyncOutcome {
            terminal: false,
            changed: synced.changed || synced.resized,
            failed: synced.failed,
            retry_after: match (retry_after, deadline) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        })
    }

    async fn terminate_pod(
        &self,
        subject: WorkerPod,
        status: Arc<PodStatus>,
        kill: Option<Kill>,
    ) -> Result<(), WorkerError> {
        self.probes.stop_liveness_and_startup(&subject.uid);
        let pod = subject.pod.as_deref();
        let kill = kill.unwrap_or_default();
        if let (Some(pod), Some(verdict)) = (pod, &kill.verdict) {
            let state = PodState::new(self.restart_delays);
            self.report(pod, &status, &state, Some(verdict), None);
        }
        let grace = kill.grace.or_else(|| pod.map(grace_period));
        // Containers without any grace period still get a stop signal.
        let grace = grace.map(|grace| grace.max(MINIMUM_POD_GRACE_PERIOD));
        let killed = self.runtime.kill_pod(pod, &status, grace).await;
        if let (Err(error), Some(pod)) = (&killed, pod) {
            let message = format_args!("error killing pod: {error}");
            self.events
                .warning(events::Subject::Pod(pod), reason::FAILED_KILL_POD, message);
        }
        killed?;
        self.probes.remove_pod(&subject.uid);
        Ok(())
    }

    async fn settle_pod(
        &self,
        subject: WorkerPod,
        status: Arc<PodStatus>,
        verdict: Option<Verdict>,
    ) -> Result<(), WorkerError> {
        let status = if status.is_running() {
            // A container was started meanwhile. The status after its end has yet to be read.
            let pod = subject.pod.as_deref();
            self.runtime.kill_pod(pod, &status, None).await?;
            self.status(&subject.uid, Some(Instant::now())).await?
        } else {
            status
        };
        // Before the pod's end is reported: then its claims can go to another pod.
        self.dra.unprepare(&subject.uid).await?;
        if let Some(pod) = &subject.pod {
            self.statuses.update(
                pod,
                StatusInputs {
                    status: &status,
                    sandbox_made: false,
                    waiting: &std::collections::BTreeMap::new(),
                    runtime_name: self.runtime.name(),
                    ending: true,
                    verdict: verdict.as_ref(),
                    held_back: None,
                    resize: None,
                },
            );
        }
        self.runtime.ungrant(&subject.uid);
        self.volumes.wait_for_unmount(&subject.uid).await?;
        if let Some(pod) = &subject.pod {
            self.remove_cgroup(pod).await?;
        }
        self.statuses.finish(&subject.uid);
        Ok(())
    }

    async fn remove_pod(
        &self,
        subject: WorkerPod,
        status: Arc<PodStatus>,
        comes_back: bool,
    ) -> Result<(), WorkerError> {
        self.runtime.remove_pod(&status).await?;
        self.pleg.request_relist();
        self.remove_pod_dir(&subject.uid).await?;
        if let Some(pod) = subject.pod.as_ref().filter(|_| !comes_back) {
            let dir = directory::log_dir(&self.local_node.pod_logs_dir, pod);
            blocking(move || Ok(tree_walk::remove_all(&dir)?)).await?;
        }
        // An orphan in the runtime may be a pod that was rejected, which keeps its status. A pod
        // that comes back starts without a status.
        if subject.pod.is_some() || self.pods.get(&subject.uid).is_none() {
            self.statuses.remove(&subject.uid);
        }
        tracing::debug!("removed the pod's files");
        Ok(())
    }
}

/// Runs work that blocks on the file system off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, WorkerError> + Send + 'static,
) -> Result<T, WorkerError> {
    repeatable::blocking(work).await?
}
