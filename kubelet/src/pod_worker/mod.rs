//! Pod workers: one task per pod, and the only one that acts on it. A worker syncs the pod until it
//! is to end, then terminates, settles and removes it, in this order and never back.

mod mailbox;
mod metrics;
mod static_names;
#[cfg(test)]
mod tests;
mod worker;

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_host::file_work::FileWork;
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_runtime::pod_state::{PodState, RestartDelays};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

pub use self::mailbox::Kill;
pub(crate) use self::metrics::{Stage, if_true};
use self::{mailbox::Mailbox, metrics::WorkerMetrics, static_names::StaticNames, worker::Worker};
use crate::status::Verdict;

/// Grace period of pods that only the runtime knows, as upstream.
const ORPHAN_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// A failed operation of a worker; it is logged and retried.
pub type WorkerError = Box<dyn std::error::Error + Send + Sync>;

/// The pod of a worker.
#[derive(Clone, Debug)]
pub struct WorkerPod {
    /// Its UID.
    pub uid: PodUid,
    /// Its full name, for log messages.
    pub full_name: String,
    /// Its spec; none for a pod that only the runtime knows.
    pub pod: Option<Arc<Pod>>,
}

impl WorkerPod {
    fn of(pod: &Arc<Pod>) -> Self {
        Self {
            uid: PodUid::of(pod),
            full_name: identity::full_name(pod),
            pod: Some(Arc::clone(pod)),
        }
    }
}

/// The outcome of a sync.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncOutcome {
    /// The pod has succeeded or failed for good.
    pub terminal: bool,
    /// The sync changed something in the runtime.
    pub changed: bool,
    /// Something failed and must be retried.
    pub failed: bool,
    /// The rest of a back-off.
    pub retry_after: Option<Duration>,
}

/// The operations of workers on pods. Each may be called any number of times and must converge; a
/// cancelled call is followed by another one.
pub trait PodSyncer: Send + Sync + 'static {
    /// The runtime's status of a pod, newer than an instant.
    fn status(
        &self,
        uid: &PodUid,
        newer_than: Option<Instant>,
    ) -> impl Future<Output = Result<Arc<PodStatus>, WorkerError>> + Send;

    /// Reconciles a pod with its spec.
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        status: Arc<PodStatus>,
        state: Arc<PodState>,
    ) -> impl Future<Output = Result<SyncOutcome, WorkerError>> + Send;

    /// Kills all containers of a pod, as `kill` specifies; `None` if the pod ended by itself.
    fn terminate_pod(
        &self,
        subject: WorkerPod,
        status: Arc<PodStatus>,
        kill: Option<Kill>,
    ) -> impl Future<Output = Result<(), WorkerError>> + Send;

    /// Reports the end of a pod whose containers have all ended, and releases its resources. The
    /// verdict is the kubelet's, if it ended the pod.
    fn settle_pod(
        &self,
        subject: WorkerPod,
        status: Arc<PodStatus>,
        verdict: Option<Verdict>,
    ) -> impl Future<Output = Result<(), WorkerError>> + Send;

    /// Removes what is left of a pod without a source. A pod that comes back keeps its logs, from
    /// which restart counts continue.
    fn remove_pod(
        &self,
        subject: WorkerPod,
        status: Arc<PodStatus>,
        comes_back: bool,
    ) -> impl Future<Output = Result<(), WorkerError>> + Send;
}

/// The workers of all pods.
#[derive(Debug)]
pub struct PodWorkers<S> {
    syncer: Arc<S>,
    workers: Mutex<BTreeMap<PodUid, watch::Sender<Mailbox>>>,
    names: Arc<StaticNames>,
    tasks: TaskTracker,
    cancel: CancellationToken,
    sync_frequency: Duration,
    restart_delays: RestartDelays,
    metrics: Arc<WorkerMetrics>,
}

/// A worker and its pod.
#[derive(Clone, Debug)]
pub(crate) struct Working {
    /// The pod.
    pub(crate) uid: PodUid,
    /// The stage of its lifecycle.
    pub(crate) stage: Stage,
    /// Whether the pod is static; `None` for a pod that only the runtime knows.
    pub(crate) is_static: Option<bool>,
}

impl<S: PodSyncer> PodWorkers<S> {
    /// No workers yet. They stop when `cancel` is cancelled, and leave pods running.
    pub fn new(
        syncer: Arc<S>,
        sync_frequency: Duration,
        restart_delays: RestartDelays,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            syncer,
            workers: Mutex::default(),
            names: Arc::default(),
            tasks: TaskTracker::new(),
            cancel,
            sync_frequency,
            restart_delays,
            metrics: Arc::default(),
        }
    }

    /// What does the work.
    pub(crate) const fn syncer(&self) -> &Arc<S> {
        &self.syncer
    }

    /// Runs the pod as it specifies; starts a worker for a new pod.
    pub fn update(&self, pod: &Arc<Pod>) {
        self.hand_over(pod, false);
    }

    /// As [`update`](Self::update), for a pod that has ended: its source says so, and the runtime has
    /// no running part of it. What is left is to report its end and to release its resources.
    pub fn update_ended(&self, pod: &Arc<Pod>) {
        self.hand_over(pod, true);
    }

    fn hand_over(&self, pod: &Arc<Pod>, has_ended: bool) {
        let uid = PodUid::of(pod);
        let mut workers = self.workers.lock();
        let mut reborn = None;
        if let Some(mailbox) = workers.get(&uid) {
            let mut taken = false;
            mailbox.send_modify(|mailbox| taken = mailbox.update(pod));
            if taken {
                return;
            }
            reborn = Some(Instant::now());
            self.metrics.restarted(Some(pod));
        }
        let mut mailbox = Mailbox::default();
        mailbox.update(pod);
        if has_ended {
            mailbox.end();
        }
        workers.insert(uid, self.spawn(WorkerPod::of(pod), mailbox, reborn));
    }

    /// Syncs the pod. Does nothing for a pod without a worker.
    pub fn sync(&self, uid: &PodUid) {
        if let Some(mailbox) = self.workers.lock().get(uid) {
            mailbox.send_modify(Mailbox::sync);
        }
    }

    /// Kills the pod. Does nothing for a pod without a worker.
    pub fn kill(&self, uid: &PodUid, kill: Kill) {
        if let Some(mailbox) = self.workers.lock().get(uid) {
            mailbox.send_modify(|mailbox| mailbox.kill(kill));
        }
    }

    /// Kills the pod. A pod without a worker gets one, but does not start.
    pub fn end(&self, pod: &Arc<Pod>, kill: Kill) {
        let uid = PodUid::of(pod);
        let mut workers = self.workers.lock();
        if let Some(mailbox) = workers.get(&uid) {
            mailbox.send_modify(|mailbox| mailbox.kill(kill));
            return;
        }
        let mut mailbox = Mailbox::default();
        mailbox.update(pod);
        mailbox.kill(kill);
        workers.insert(uid, self.spawn(WorkerPod::of(pod), mailbox, None));
    }

    /// Kills and removes a pod in the runtime that has no source.
    pub fn kill_orphan(&self, uid: &PodUid, full_name: String) {
        let mut workers = self.workers.lock();
        if workers.contains_key(uid) {
            return;
        }
        let mut mailbox = Mailbox::default();
        mailbox.kill(Kill {
            grace: Some(ORPHAN_GRACE_PERIOD),
            deleted: true,
            verdict: None,
        });
        let subject = WorkerPod {
            uid: uid.clone(),
            full_name,
            pod: None,
        };
        self.metrics.orphans.of([]).increment();
        workers.insert(uid.clone(), self.spawn(subject, mailbox, None));
    }

    /// Forgets the workers that finished before `listed`, when the runtime was listed: what the
    /// list still shows of their pods is not theirs.
    pub fn reap(&self, listed: Instant) {
        self.workers.lock().retain(|_, mailbox| {
            let finished = mailbox.borrow().finished();
            finished.is_none_or(|finished| finished >= listed)
        });
    }

    /// Whether the pod has a worker.
    pub fn is_known(&self, uid: &PodUid) -> bool {
        self.workers.lock().contains_key(uid)
    }

    /// Whether a static pod of the full name has not ended yet.
    pub fn has_static(&self, full_name: &str) -> bool {
        self.names.is_taken(full_name)
    }

    /// Whether no container of the pod runs any more, or ever ran.
    pub fn has_ended(&self, uid: &PodUid) -> bool {
        let workers = self.workers.lock();
        let mailbox = workers.get(uid);
        mailbox.is_none_or(|mailbox| mailbox.borrow().has_ended())
    }

    /// Whether the pod's resources on the node are released, or it never had any.
    pub fn has_settled(&self, uid: &PodUid) -> bool {
        let workers = self.workers.lock();
        let mailbox = workers.get(uid);
        mailbox.is_none_or(|mailbox| mailbox.borrow().has_settled())
    }

    /// Whether nothing of the pod in the runtime is needed any more: it has no worker, or it was
    /// evicted or deleted and its resources are released.
    pub fn is_removable(&self, uid: &PodUid) -> bool {
        let workers = self.workers.lock();
        let mailbox = workers.get(uid);
        mailbox.is_none_or(|mailbox| mailbox.borrow().is_removable())
    }

    /// Waits until [`has_settled`](Self::has_settled).
    pub async fn settled(&self, uid: &PodUid) {
        self.wait_for(uid, Mailbox::has_settled).await;
    }

    /// Waits until [`has_ended`](Self::has_ended).
    pub async fn containers_ended(&self, uid: &PodUid) {
        self.wait_for(uid, Mailbox::has_ended).await;
    }

    async fn wait_for(&self, uid: &PodUid, holds: impl FnMut(&Mailbox) -> bool) {
        let mailbox = self.workers.lock().get(uid).map(watch::Sender::subscribe);
        if let Some(mut mailbox) = mailbox {
            // Fails only once the worker has nothing left to do.
            let _ = mailbox.wait_for(holds).await;
        }
    }

    /// All known workers.
    pub(crate) fn working(&self) -> Vec<Working> {
        let workers = self.workers.lock();
        let working = workers.iter().map(|(uid, mailbox)| {
            let mailbox = mailbox.borrow();
            Working {
                uid: uid.clone(),
                stage: if mailbox.has_ended() {
                    Stage::Terminated
                } else if mailbox.kill.is_some() {
                    Stage::Terminating
                } else {
                    Stage::Sync
                },
                is_static: mailbox.pod.as_deref().map(identity::is_static),
            }
        });
        working.collect()
    }

    /// Waits for the tasks of all workers after cancellation.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn(
        &self,
        subject: WorkerPod,
        mailbox: Mailbox,
        reborn: Option<Instant>,
    ) -> watch::Sender<Mailbox> {
        if subject.pod.as_deref().is_some_and(identity::is_static) {
            self.names.enlist(&subject.full_name, &subject.uid);
        }
        let mailbox = watch::Sender::new(mailbox);
        let span = identity::span(&subject.full_name, &subject.uid);
        let worker = Worker {
            subject,
            syncer: Arc::clone(&self.syncer),
            names: Arc::clone(&self.names),
            mailbox: mailbox.clone(),
            reborn,
            seen: Instant::now(),
            file_work: FileWork::default(),
            metrics: Arc::clone(&self.metrics),
            sync_frequency: self.sync_frequency,
            restart_delays: self.restart_delays,
        };
        let cancel = self.cancel.clone();
        let work = async move {
            cancel.run_until_cancelled(worker.run()).await;
        };
        self.tasks.spawn(work.instrument(span));
        mailbox
    }
}

impl<S: PodSyncer + std::fmt::Debug> Collector for PodWorkers<S> {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}
