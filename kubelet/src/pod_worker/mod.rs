//! Pod workers: one task a pod, that alone acts on it. They sync the pod until
//! it is to end, then kill, clean up and remove it, in this order and never back.

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
use kubelet_runtime::pod_state::PodState;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::mailbox::Kill;
pub(crate) use self::metrics::{Stage, if_true};
use self::{mailbox::Mailbox, metrics::WorkerMetrics, static_names::StaticNames, worker::Worker};

/// What only the runtime has of a pod gets no longer than this to end, as upstream.
const ORPHAN_GRACE_PERIOD: Duration = Duration::from_secs(1);

/// Whatever kept a worker from doing its work; it is logged and tried again.
pub type WorkerError = Box<dyn std::error::Error + Send + Sync>;

/// The pod that a worker is for.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its UID.
    pub uid: PodUid,
    /// Its full name, for people.
    pub full_name: String,
    /// Its spec; none for what only the runtime knows.
    pub pod: Option<Arc<Pod>>,
}

impl Subject {
    fn of(pod: &Arc<Pod>) -> Self {
        Self {
            uid: PodUid::of(pod),
            full_name: identity::full_name(pod),
            pod: Some(Arc::clone(pod)),
        }
    }
}

/// What a sync came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncOutcome {
    /// The pod is done: it succeeded or failed for good.
    pub terminal: bool,
    /// Something was changed in the runtime.
    pub changed: bool,
    /// Something did not work and is to be tried again.
    pub failed: bool,
    /// Something backs off for so long.
    pub retry_after: Option<Duration>,
}

/// What workers do to pods. Each may be called any number of times and must
/// converge; a call that is dropped is followed by another.
pub trait PodSyncer: Send + Sync + 'static {
    /// What the runtime has of a pod, newer than an instant.
    fn status(
        &self,
        uid: &PodUid,
        newer_than: Option<Instant>,
    ) -> impl Future<Output = Result<Arc<PodStatus>, WorkerError>> + Send;

    /// Brings a pod to what its spec asks for.
    fn sync_pod(
        &self,
        pod: Arc<Pod>,
        status: Arc<PodStatus>,
        state: Arc<PodState>,
    ) -> impl Future<Output = Result<SyncOutcome, WorkerError>> + Send;

    /// Ends everything that runs of a pod, as `kill` says; one that ended by itself
    /// was not killed.
    fn terminate_pod(
        &self,
        subject: Subject,
        status: Arc<PodStatus>,
        kill: Option<Kill>,
    ) -> impl Future<Output = Result<(), WorkerError>> + Send;

    /// Reports the end of a pod of which nothing runs, and frees its resources.
    fn settle_pod(
        &self,
        subject: Subject,
        status: Arc<PodStatus>,
    ) -> impl Future<Output = Result<(), WorkerError>> + Send;

    /// Removes what is left of a pod that no source has. One that comes back keeps what
    /// tells how often it ran.
    fn remove_pod(
        &self,
        subject: Subject,
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
    max_restart_period: Duration,
    metrics: Arc<WorkerMetrics>,
}

/// A worker and the pod that it is for.
#[derive(Clone, Debug)]
pub(crate) struct Working {
    /// The pod.
    pub(crate) uid: PodUid,
    /// How far it is.
    pub(crate) stage: Stage,
    /// Whether the pod is a static one; `None` for what only the runtime has.
    pub(crate) is_static: Option<bool>,
}

impl<S: PodSyncer> PodWorkers<S> {
    /// No workers yet. They end with `cancel`, and leave pods running.
    pub fn new(
        syncer: Arc<S>,
        sync_frequency: Duration,
        max_restart_period: Duration,
        cancel: CancellationToken,
    ) -> Self {
        Self {
            syncer,
            workers: Mutex::default(),
            names: Arc::default(),
            tasks: TaskTracker::new(),
            cancel,
            sync_frequency,
            max_restart_period,
            metrics: Arc::default(),
        }
    }

    /// The pod is to run as it says; begins a worker for a new one.
    pub fn update(&self, pod: &Arc<Pod>) {
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
        workers.insert(uid, self.spawn(Subject::of(pod), mailbox, reborn));
    }

    /// Something happened to the pod in the runtime. Nothing, for a pod without
    /// a worker.
    pub fn sync(&self, uid: &PodUid) {
        if let Some(mailbox) = self.workers.lock().get(uid) {
            mailbox.send_modify(Mailbox::sync);
        }
    }

    /// The pod is to end. Nothing, for a pod without a worker.
    pub fn kill(&self, uid: &PodUid, kill: Kill) {
        if let Some(mailbox) = self.workers.lock().get(uid) {
            mailbox.send_modify(|mailbox| mailbox.kill(kill));
        }
    }

    /// The pod is to end, and not to begin if it did not yet.
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
        workers.insert(uid, self.spawn(Subject::of(pod), mailbox, None));
    }

    /// Kills and removes what the runtime has of a pod that no source has.
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
        let subject = Subject {
            uid: uid.clone(),
            full_name,
            pod: None,
        };
        self.metrics.orphans.of([]).increment();
        workers.insert(uid.clone(), self.spawn(subject, mailbox, None));
    }

    /// Forgets the workers that had nothing left to do before `listed`, when the
    /// runtime was listed: what it then still has is not theirs.
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

    /// Whether nothing of the pod runs any more, or ever did.
    pub fn has_ended(&self, uid: &PodUid) -> bool {
        let workers = self.workers.lock();
        let mailbox = workers.get(uid);
        mailbox.is_none_or(|mailbox| mailbox.borrow().has_ended())
    }

    /// Whether what the pod had on the node is given back, or it never had anything.
    pub fn has_settled(&self, uid: &PodUid) -> bool {
        let workers = self.workers.lock();
        let mailbox = workers.get(uid);
        mailbox.is_none_or(|mailbox| mailbox.borrow().has_settled())
    }

    /// Waits until [`has_settled`](Self::has_settled).
    pub async fn settled(&self, uid: &PodUid) {
        let mailbox = self.workers.lock().get(uid).map(watch::Sender::subscribe);
        if let Some(mut mailbox) = mailbox {
            // Fails only when the worker has nothing left to do.
            let _ = mailbox.wait_for(Mailbox::has_settled).await;
        }
    }

    /// Every worker that is known, by its pod's UID.
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

    /// Waits for the tasks of all workers, after they were cancelled.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn spawn(
        &self,
        subject: Subject,
        mailbox: Mailbox,
        reborn: Option<Instant>,
    ) -> watch::Sender<Mailbox> {
        if subject.pod.as_deref().is_some_and(identity::is_static) {
            self.names.enlist(&subject.full_name, &subject.uid);
        }
        let mailbox = watch::Sender::new(mailbox);
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
            max_restart_period: self.max_restart_period,
        };
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move {
            cancel.run_until_cancelled(worker.run()).await;
        });
        mailbox
    }
}

impl<S: PodSyncer + std::fmt::Debug> Collector for PodWorkers<S> {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}
