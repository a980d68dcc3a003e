//! Pods that are admitted, and cannot start yet: other pods must end first, or device plugins must be
//! asked.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_resource_managers::Admitted;
use tokio::task::{AbortHandle, JoinSet};
use tracing::info;

use super::SyncLoop;
use crate::pod::rejection::Rejection;

/// The pods that wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingPods {
    pods: BTreeMap<PodUid, WaitsFor>,
    /// The tasks that ask device plugins.
    questions: JoinSet<Allocated>,
}

/// What a pod waits for.
#[derive(Debug)]
enum WaitsFor {
    /// These pods must end: because they are preempted, or because they have what the pod needs for
    /// itself.
    Pods(Vec<PodUid>),
    Plugins(PluginQuestions),
}

/// Device plugins are asked, until this is dropped.
#[derive(Debug)]
struct PluginQuestions {
    task: AbortHandle,
    /// Whether the pod is a checkpointed one, which is never rejected.
    is_restored: bool,
}

impl Drop for PluginQuestions {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Device plugins have been asked for a pod.
#[derive(Debug)]
pub(super) struct Allocated {
    uid: PodUid,
    result: Result<(), Rejection>,
}

impl WaitingPods {
    pub(super) fn contains(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// Lets a pod wait until these have ended.
    pub(super) fn add_for_pods(&mut self, uid: PodUid, pods: Vec<PodUid>) {
        self.pods.insert(uid, WaitsFor::Pods(pods));
    }

    /// The source of a pod has sent it again: it is not only a checkpointed one.
    pub(super) fn told_again(&mut self, uid: &PodUid) {
        if let Some(WaitsFor::Plugins(questions)) = self.pods.get_mut(uid) {
            questions.is_restored = false;
        }
    }

    /// Ends the wait of a pod. Returns whether it waited.
    pub(super) fn remove(&mut self, uid: &PodUid) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// The next pod for which device plugins have been asked; `None` if they are asked for none.
    pub(super) async fn next_allocated(&mut self) -> Option<(Allocated, bool)> {
        loop {
            match self.questions.join_next_with_id().await? {
                Ok((id, allocated)) => {
                    // Not one that a task for another pod of the same UID has replaced.
                    let waits = self.pods.get(&allocated.uid);
                    if let Some(WaitsFor::Plugins(questions)) = waits
                        && questions.task.id() == id
                    {
                        let is_restored = questions.is_restored;
                        self.pods.remove(&allocated.uid);
                        return Some((allocated, is_restored));
                    }
                }
                Err(error) => {
                    if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic)
                    }
                }
            }
        }
    }
}

impl SyncLoop<'_> {
    /// Gives an admitted pod what its containers have for themselves, which containers that are gone
    /// may have had.
    pub(super) fn allocate(&self, pod: &Pod) -> Result<Admitted, Rejection> {
        // With `--runonce`, the containers of other pods are not known.
        if self.has_all_pods && self.housekeeping.is_some() {
            self.holders.release_gone();
        }
        let listing = self.pleg.listing();
        let record = listing.records.get(&PodUid::of(pod));
        let runs = record.is_some_and(|record| record.has_running());
        self.admission.allocate(pod, runs)
    }

    /// Lets the pod wait if pods that end have resources of their own, such as the static pod that it
    /// replaces. Returns whether it does.
    pub(super) fn wait_for_resources(&mut self, pod: &Arc<Pod>) -> bool {
        let ending = self.holders.ending(self.has_all_pods);
        if ending.is_empty() {
            return false;
        }
        let uid = PodUid::of(pod);
        info!(
            pod = identity::full_name(pod), pod_uid = %uid, ending = ending.len(),
            "pod waits for resources of pods that end"
        );
        self.runtime.place(pod);
        self.waiting.add_for_pods(uid, ending.into_iter().collect());
        true
    }

    /// Asks device plugins what is left to ask, and lets the pod wait meanwhile.
    pub(super) fn wait_for_plugins(&mut self, pod: &Arc<Pod>, is_restored: bool) {
        let uid = PodUid::of(pod);
        let asks = {
            let (admission, pod, uid) = (self.admission.clone(), Arc::clone(pod), uid.clone());
            let syncer = Arc::clone(self.workers.syncer());
            async move {
                syncer.report_waiting(&pod).await;
                let result = admission.allocate_devices(&pod).await;
                Allocated { uid, result }
            }
        };
        let questions = PluginQuestions {
            task: self.waiting.questions.spawn(asks),
            is_restored,
        };
        let waits = WaitsFor::Plugins(questions);
        self.waiting.pods.insert(uid, waits);
    }

    /// Device plugins have been asked for a pod: runs it, or rejects it.
    pub(super) fn allocated(&mut self, (allocated, is_restored): (Allocated, bool)) {
        let Allocated { uid, result } = allocated;
        let Some(pod) = self.pods.get(&uid) else {
            return;
        };
        match result {
            // It is run if the shutdown is cancelled.
            Ok(()) if self.shutdown.is_under_way() => {
                self.waiting.add_for_pods(uid, Vec::new());
            }
            Ok(()) => self.run_allocated(&pod),
            Err(_) if self.wait_for_resources(&pod) => {}
            Err(rejection) if is_restored => {
                self.runtime.ungrant(&uid);
                self.leave_undecided(&pod, &rejection);
            }
            Err(rejection) => self.reject_allocated(&pod, rejection),
        }
    }

    /// Runs the pods that waited for others to end. Pods that end in a node shutdown free no
    /// resources.
    pub(super) fn run_waiting(&mut self) {
        if self.shutdown.is_under_way() || self.waiting.pods.is_empty() {
            return;
        }
        let ending = self.holders.ending(self.has_all_pods);
        let mut ready = Vec::new();
        for (uid, waits) in &mut self.waiting.pods {
            let WaitsFor::Pods(victims) = waits else {
                continue;
            };
            victims.retain(|victim| !self.workers.has_ended(victim) || ending.contains(victim));
            if victims.is_empty() {
                ready.push(uid.clone());
            }
        }
        for uid in ready {
            self.waiting.remove(&uid);
            let Some(pod) = self.pods.get(&uid) else {
                continue;
            };
            let granted = self.runtime.granted(&pod);
            match self.allocate(&granted) {
                Ok(Admitted::Complete) => self.run_allocated(&pod),
                Ok(Admitted::AfterPlugins) => self.wait_for_plugins(&granted, false),
                Err(_) if self.wait_for_resources(&pod) => {}
                Err(rejection) => self.reject_allocated(&pod, rejection),
            }
        }
    }

    fn run_allocated(&self, pod: &Arc<Pod>) {
        let uid = PodUid::of(pod);
        info!(pod = identity::full_name(pod), pod_uid = %uid, "pod added");
        self.workers.update(pod);
    }

    fn reject_allocated(&mut self, pod: &Arc<Pod>, rejection: Rejection) {
        self.runtime.ungrant(&PodUid::of(pod));
        self.admission.count_rejection(&rejection);
        self.reject(pod, rejection);
    }
}
