//! Pods that cannot start yet: other pods must end first, or device plugins or the API server must be
//! asked.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::request::ask;
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_resource_managers::Admitted;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{info, warn};

use super::SyncLoop;
use crate::{lifecycle::NodeFacts, pod::rejection::Rejection, sources::update::PodOperation};

/// The pods that wait.
#[derive(Debug, Default)]
pub(crate) struct WaitingPods {
    pods: BTreeMap<PodUid, WaitsFor>,
    /// The tasks that ask for them.
    questions: JoinSet<Answered>,
}

/// What a pod waits for.
#[derive(Debug)]
enum WaitsFor {
    /// These pods must end: because they are preempted, or because they have what the pod needs for
    /// itself.
    Pods(Vec<PodUid>),
    Answer(Question),
}

/// A task asks for an answer, until this is dropped.
#[derive(Debug)]
struct Question {
    task: AbortHandle,
    /// Whether the pod is a checkpointed one, which is never rejected.
    is_restored: bool,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An answer about a pod.
#[derive(Debug)]
pub(super) struct Answered {
    uid: PodUid,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// Device plugins have been asked what was left to ask.
    Plugins(Result<(), Rejection>),
    /// The API server has been asked for the node, which was not as the pod wants it.
    Node {
        facts: Option<Box<NodeFacts>>,
        before: Rejection,
    },
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
        if let Some(WaitsFor::Answer(question)) = self.pods.get_mut(uid) {
            question.is_restored = false;
        }
    }

    /// Ends the wait of a pod. Returns whether it waited.
    pub(super) fn remove(&mut self, uid: &PodUid) -> bool {
        self.pods.remove(uid).is_some()
    }

    /// The next answer, and whether its pod is a checkpointed one; `None` if no task asks.
    pub(super) async fn next_answer(&mut self) -> Option<(Answered, bool)> {
        loop {
            match self.questions.join_next_with_id().await? {
                Ok((id, answered)) => {
                    // Not one that a task for another pod of the same UID has replaced.
                    let waits = self.pods.get(&answered.uid);
                    if let Some(WaitsFor::Answer(question)) = waits
                        && question.task.id() == id
                    {
                        let is_restored = question.is_restored;
                        self.pods.remove(&answered.uid);
                        return Some((answered, is_restored));
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
        let (admission, pod) = (self.admission.clone(), Arc::clone(pod));
        let syncer = Arc::clone(self.workers.syncer());
        self.wait_for_answer(PodUid::of(&pod), is_restored, async move {
            syncer.report_waiting(&pod).await;
            Answer::Plugins(admission.allocate_devices(&pod).await)
        });
    }

    /// Asks the API server for the node, and lets the pod wait meanwhile: the watch may be behind the
    /// scheduler. Without an API server, the pod is rejected.
    pub(super) fn ask_for_node(&mut self, pod: &Arc<Pod>, rejection: Rejection) {
        let Some(api) = self.node.api() else {
            self.reject(pod, rejection);
            return;
        };
        let node = Arc::clone(self.node);
        self.wait_for_answer(PodUid::of(pod), false, async move {
            let asked = ask(api.get(&node.standalone.name)).await;
            let asked = asked.inspect_err(|error| {
                warn!(%error, "cannot read the node, whose labels a pod does not fit");
            });
            let facts = asked
                .ok()
                .map(|object| node.facts_told(Some(object.into())));
            Answer::Node {
                facts: facts.map(Box::new),
                before: rejection,
            }
        });
    }

    fn wait_for_answer(
        &mut self,
        uid: PodUid,
        is_restored: bool,
        answer: impl Future<Output = Answer> + Send + 'static,
    ) {
        let of = uid.clone();
        let task = self.waiting.questions.spawn(async move {
            let answer = answer.await;
            Answered { uid: of, answer }
        });
        let question = Question { task, is_restored };
        self.waiting.pods.insert(uid, WaitsFor::Answer(question));
    }

    /// Runs a pod, or rejects it, by an answer about it.
    pub(super) fn answered(&mut self, (answered, is_restored): (Answered, bool)) {
        let Answered { uid, answer } = answered;
        let Some(pod) = self.pods.get(&uid) else {
            return;
        };
        match answer {
            // It is run if the shutdown is cancelled.
            Answer::Plugins(Ok(())) if self.shutdown.is_under_way() => {
                self.waiting.add_for_pods(uid, Vec::new());
            }
            Answer::Plugins(Ok(())) => self.run_allocated(&pod),
            Answer::Plugins(Err(_)) if self.wait_for_resources(&pod) => {}
            Answer::Plugins(Err(rejection)) if is_restored => {
                self.runtime.ungrant(&uid);
                self.leave_undecided(&pod, &rejection);
            }
            Answer::Plugins(Err(rejection)) => self.reject_allocated(&pod, rejection),
            Answer::Node {
                facts: Some(facts), ..
            } => {
                let runtime = self.runtime;
                let _placing = runtime.placing();
                self.admit(&pod, Some(&facts), PodOperation::Add);
            }
            Answer::Node {
                facts: None,
                before,
            } => self.reject(&pod, before),
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
        self.reject(pod, rejection);
    }
}
