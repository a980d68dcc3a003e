//! The sync loop: one task that receives every change and dispatches it to the worker of the pod.
//! It waits for nothing except a runtime that can run pods.

mod admission;
mod inputs;
mod monitor;
mod waiting;

use std::{collections::HashSet, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::EventRecorder;
use kubelet_cri_client::readiness::RuntimeReadiness;
use kubelet_node::shutdown::NodeShutdown;
use kubelet_pod_spec::{
    identity::{self, PodUid},
    phase::Phase,
};
use kubelet_runtime::{RuntimeManager, resize::ResizeTrigger};
use retry_delay::RetryDelay;
use tokio::time::{Instant, MissedTickBehavior, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::inputs::SyncLoopInput;
pub(crate) use self::{inputs::SyncLoopInputs, monitor::LoopMonitor, waiting::WaitingPods};
use crate::{
    housekeeping::Housekeeping,
    lifecycle::{Admission, NodeSource},
    pleg::{ChangeKind, Pleg, PodLifecycleEvent},
    pod::{manager::PodManager, mirror::MirrorPods},
    pod_syncer::Syncer,
    pod_worker::{Kill, PodWorkers},
    resource_holders::ResourceHolders,
    sources::update::{PodOperation, PodUpdate},
    status::StatusManager,
};

/// Between two rounds of housekeeping, as upstream.
const HOUSEKEEPING_PERIOD: Duration = Duration::from_secs(2);
/// Between two checks of the mirror pods of static pods that have ended, which are not synced any
/// more.
const MIRRORING_PERIOD: Duration = Duration::from_secs(60);
/// Between two checks whether the runtime's pods have been listed, at the start.
const FIRST_LIST_PERIOD: Duration = Duration::from_millis(10);
/// How long the loop pauses while the runtime is not ready: doubled each time, as upstream.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The sync loop and the parts that it calls.
pub(crate) struct SyncLoop<'a> {
    pub(crate) admission: &'a Admission,
    pub(crate) node: &'a Arc<NodeSource>,
    pub(crate) shutdown: &'a NodeShutdown,
    pub(crate) runtime: &'a RuntimeManager,
    pub(crate) readiness: &'a RuntimeReadiness,
    pub(crate) pleg: &'a Pleg,
    pub(crate) pods: &'a PodManager,
    pub(crate) statuses: &'a StatusManager,
    pub(crate) workers: &'a Arc<PodWorkers<Syncer>>,
    pub(crate) monitor: &'a LoopMonitor,
    /// None without an API server.
    pub(crate) mirrors: Option<&'a MirrorPods>,
    pub(crate) events: &'a EventRecorder,
    /// None with `--runonce`, which leaves other pods alone.
    pub(crate) housekeeping: Option<Housekeeping>,
    pub(crate) sources_ready: &'a (dyn Fn() -> bool + Send + Sync),
    pub(crate) holders: ResourceHolders<'a>,
    /// Whether every source was read, and its pods processed.
    pub(crate) has_all_pods: bool,
    /// Pods that were rejected and have no worker.
    pub(crate) rejected: HashSet<PodUid>,
    /// Checkpointed pods that wait for the API server to send them again.
    pub(crate) undecided: HashSet<PodUid>,
    pub(crate) waiting: WaitingPods,
}

impl SyncLoop<'_> {
    /// Runs until cancelled. When a source ends, its pods keep running.
    pub(crate) async fn run(mut self, mut inputs: SyncLoopInputs, cancel: CancellationToken) {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING_PERIOD);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut mirroring = tokio::time::interval(MIRRORING_PERIOD);
        mirroring.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let ready = cancel.run_until_cancelled(self.wait_for_runtime(&mut inputs));
            if ready.await.is_none() {
                return;
            }
            self.monitor.tick();
            // The last source may be read while its update is still processed: not before the next
            // input are all pods known.
            self.has_all_pods |= (self.sources_ready)();
            // The rarer branches first, so that frequent ones do not starve them.
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                _ = housekeeping.tick() => {
                    self.run_waiting();
                    if let Some(housekeeping) = &mut self.housekeeping
                        && (self.sources_ready)()
                    {
                        self.statuses.forget_remembered();
                        housekeeping.run(|uid| self.waiting.contains(uid));
                    }
                }
                _ = mirroring.tick() => {
                    self.pods.pods().iter().for_each(|pod| self.mirror_if_ended(pod));
                }
                Some(answer) = self.waiting.next_answer() => self.answered(answer),
                input = inputs.next() => match input {
                    SyncLoopInput::Update(update) => self.update(update),
                    SyncLoopInput::Probe(uid) => self.probed(&uid),
                    SyncLoopInput::Event(event) => {
                        self.event(&event);
                        self.run_waiting();
                    }
                }
            }
        }
    }

    /// Pauses while no pod can be run. Keeps receiving runtime events meanwhile, so that their
    /// sender is not blocked.
    async fn wait_for_runtime(&mut self, inputs: &mut SyncLoopInputs) {
        let mut pause = RetryDelay::new(FIRST_PAUSE, MAX_PAUSE);
        let mut missed = Vec::new();
        let mut told = None;
        loop {
            let Some(problem) = self.runtime_problem() else {
                // Only then is it known which pods run.
                if self.pleg.listing().at.is_some() {
                    break;
                }
                sleep(FIRST_LIST_PERIOD).await;
                continue;
            };
            self.monitor.waits_for(&problem);
            if told.as_ref() != Some(&problem) {
                warn!(problem, "skipping pod synchronization");
            }
            told = Some(problem);
            let until = Instant::now() + pause.after_failure();
            while let Ok(event) = timeout_at(until, inputs.next_event()).await {
                if !missed.contains(&event.uid) && asks_for_a_sync(&event) {
                    missed.push(event.uid);
                }
            }
        }
        if told.is_some() {
            info!("resumed pod synchronization");
        }
        for uid in missed {
            self.workers.sync(&uid);
        }
    }

    /// Why no pod can be run now.
    fn runtime_problem(&self) -> Option<String> {
        let mut problems = self.readiness.runtime_problems();
        problems.extend(self.pleg.healthy().err());
        (!problems.is_empty()).then(|| problems.join("; "))
    }

    fn update(&mut self, mut update: PodUpdate) {
        debug!(
            source = %update.source, operation = ?update.operation, pods = update.pods.len(),
            "received pod changes from a source"
        );
        if !matches!(
            update.operation,
            PodOperation::Restore | PodOperation::Remove
        ) {
            let latencies = self.statuses.latencies();
            update.pods.iter().for_each(|pod| latencies.observed(pod));
        }
        let is_told_again = matches!(
            update.operation,
            PodOperation::Update | PodOperation::Delete | PodOperation::Reconcile
        );
        if is_told_again && !self.undecided.is_empty() {
            // The workers do not know them yet.
            let pods = update.pods.into_iter();
            let (undecided, known) = pods.partition(|pod| self.undecided.remove(&PodUid::of(pod)));
            update.pods = known;
            self.add(undecided, PodOperation::Add);
        }
        match update.operation {
            PodOperation::Add | PodOperation::Restore => self.add(update.pods, update.operation),
            PodOperation::Update | PodOperation::Delete => {
                self.runtime.want_resizes(ResizeTrigger::PodUpdated);
                for pod in update.pods {
                    let uid = PodUid::of(&pod);
                    if let Some(before) = self.pods.get(&uid) {
                        self.runtime.count_requested_resizes(&before, &pod);
                    }
                    self.pods.set(Arc::clone(&pod));
                    if identity::is_mirror(&pod) {
                        self.mirrored(&pod);
                    } else if self.is_given_to_worker(&pod) {
                        self.workers.update(&pod);
                    }
                    if pod.metadata.deletion_timestamp.is_some() {
                        self.statuses.renew(&uid);
                    }
                }
            }
            PodOperation::Remove => update.pods.iter().for_each(|pod| self.remove(pod)),
            PodOperation::Reconcile => {
                for pod in update.pods {
                    self.pods.set(Arc::clone(&pod));
                    if self.is_given_to_worker(&pod) && self.statuses.is_affected_by(&pod) {
                        self.workers.update(&pod);
                    }
                }
            }
        }
    }

    /// Whether the pod belongs to a worker. A pod that is deleted while it waits stops waiting.
    fn is_given_to_worker(&mut self, pod: &Pod) -> bool {
        let uid = PodUid::of(pod);
        self.waiting.told_again(&uid);
        if pod.metadata.deletion_timestamp.is_some() {
            self.waiting.remove(&uid);
        }
        !self.rejected.contains(&uid) && !self.waiting.contains(&uid)
    }

    /// A mirror pod changed: syncs its static pod, which reconciles the mirror pod, and resends the
    /// status.
    fn mirrored(&self, mirror: &Pod) {
        if let Some(mirrors) = self.mirrors {
            mirrors.confirm(mirror);
        }
        let full_name = identity::full_name(mirror);
        if let Some(pod) = self.pods.get_by_full_name(&full_name) {
            let uid = PodUid::of(&pod);
            self.workers.sync(&uid);
            self.statuses.renew(&uid);
            self.mirror_if_ended(&pod);
        } else {
            debug!(mirror = full_name, "mirror pod has no static pod (yet)");
        }
    }

    /// Called before the mirror pod is known: then the status of its static pod is sent.
    fn adopt_status(&self, mirror: &Pod) {
        let full_name = identity::full_name(mirror);
        if let Some(pod) = self.pods.get_by_full_name(&full_name)
            && identity::is_mirror_of(mirror, &pod)
        {
            self.statuses.adopt(&pod, mirror);
        }
    }

    /// Reconciles the mirror pod of a static pod that has ended, because it is not synced any more.
    fn mirror_if_ended(&self, pod: &Pod) {
        let uid = PodUid::of(pod);
        let was_run = !self.rejected.contains(&uid) && !self.waiting.contains(&uid);
        if let Some(mirrors) = self.mirrors
            && was_run
            && self.workers.has_ended(&uid)
        {
            mirrors.mirror(pod);
        }
    }

    /// Adds pods.
    fn add(&mut self, mut pods: Vec<Arc<Pod>>, operation: PodOperation) {
        self.runtime.want_resizes(ResizeTrigger::PodsAdded);
        // Oldest first: they are admitted first.
        pods.sort_by(|a, b| {
            let created = |pod: &Pod| pod.metadata.creation_timestamp.clone();
            created(a).cmp(&created(b))
        });
        for pod in pods {
            if identity::is_mirror(&pod) {
                self.adopt_status(&pod);
                self.pods.set(Arc::clone(&pod));
                self.mirrored(&pod);
                continue;
            }
            if let Some(mirror) = self.pods.mirror(&identity::full_name(&pod))
                && identity::is_mirror_of(&mirror, &pod)
            {
                self.statuses.adopt(&pod, &mirror);
            }
            let runtime = self.runtime;
            let _placing = runtime.placing();
            self.pods.set(Arc::clone(&pod));
            runtime.objects().begin(&pod);
            let has_ended_here = self.statuses.recall(&pod);
            let status = pod.status.as_ref();
            let phase = status.and_then(|status| status.phase.as_deref());
            let done = has_ended_here || Phase::parse(phase).is_terminal();
            // A pod that terminates or has ended needs no resources.
            if done && !self.runs(&PodUid::of(&pod)) {
                info!(pod = identity::full_name(&pod), pod_uid = %PodUid::of(&pod), "pod added");
                self.workers.update_ended(&pod);
            } else if done || pod.metadata.deletion_timestamp.is_some() {
                self.run_admitted(&pod, done);
            } else {
                self.admit(&pod, None, operation);
            }
        }
    }

    fn remove(&mut self, pod: &Pod) {
        if identity::is_mirror(pod) {
            self.pods.remove(pod);
            self.mirrored(pod);
            return;
        }
        let uid = PodUid::of(pod);
        info!(pod = identity::full_name(pod), pod_uid = %uid, "pod removed from its source");
        self.pods.remove(pod);
        if self.waiting.remove(&uid) {
            // No worker had it yet.
            self.runtime.ungrant(&uid);
        }
        if self.rejected.remove(&uid) | self.undecided.remove(&uid) {
            self.statuses.remove(&uid);
        }
        let kill = Kill {
            deleted: true,
            ..Kill::default()
        };
        self.workers.kill(&uid, kill);
    }

    /// The result of a probe of the pod changed.
    fn probed(&self, uid: &PodUid) {
        if let Some(pod) = self.pods.get(uid) {
            // Readiness is updated even while the pod's worker is busy.
            self.statuses.probed(&pod);
        }
        self.workers.sync(uid);
    }

    fn event(&self, event: &PodLifecycleEvent) {
        if asks_for_a_sync(event) {
            self.workers.sync(&event.uid);
        }
    }
}

/// Whether the event requires a sync of the pod. Removed containers, and containers that never
/// started, do not.
fn asks_for_a_sync(event: &PodLifecycleEvent) -> bool {
    let mut changes = event.changes.iter();
    changes.any(|change| match change.kind {
        ChangeKind::Started | ChangeKind::Died | ChangeKind::Lost => true,
        ChangeKind::Created | ChangeKind::Removed => false,
    })
}
