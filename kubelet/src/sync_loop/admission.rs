//! The admission of pods, and what follows from it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::Subject;
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_resource_managers::Admitted;
use tracing::{info, warn};

use super::SyncLoop;
use crate::{
    active_pods::active_pods,
    lifecycle::{AdmissionOutcome, NODE_AFFINITY, NodeFacts, preemption},
    pod::rejection::Rejection,
    pod_worker::Kill,
    sources::update::PodOperation,
    status::Verdict,
};

impl SyncLoop<'_> {
    /// Decides whether the node runs a pod, by the facts that the API server has `told` when asked,
    /// if it was. The caller places pods.
    ///
    /// A restored pod is never rejected and preempts no other pod: both are final, and the remembered
    /// node object may be out of date. It waits until its source sends it again.
    pub(super) fn admit(
        &mut self,
        pod: &Arc<Pod>,
        told: Option<&NodeFacts>,
        operation: PodOperation,
    ) {
        let is_restored = operation == PodOperation::Restore;
        let uid = PodUid::of(pod);
        let runtime = self.runtime;
        let watched = self.node.facts();
        let node = told.unwrap_or(&watched);
        let granted = runtime.granted(pod);
        let others = self.active_pods_beside(&uid);
        let allocate = || self.allocate(&granted);
        match self.admission.admit(&granted, node, &others, allocate) {
            Ok(AdmissionOutcome::Now) => match self.allocate(&granted) {
                Ok(Admitted::Complete) => self.run_admitted(pod, false),
                Ok(Admitted::AfterPlugins) => {
                    runtime.place(pod);
                    self.wait_for_plugins(&granted, is_restored);
                }
                Err(_) if self.wait_for_resources(pod) => {}
                Err(rejection) if is_restored => self.leave_undecided(pod, &rejection),
                Err(rejection) => self.reject(pod, rejection),
            },
            Ok(AdmissionOutcome::AfterPreemption(_)) if is_restored => {
                warn!(
                    pod = identity::full_name(pod), pod_uid = %uid,
                    "pod waits for the API server: it would preempt other pods"
                );
                self.undecided.insert(uid);
            }
            Ok(AdmissionOutcome::AfterPreemption(victims)) => {
                runtime.place(pod);
                self.preempt(pod, &victims);
            }
            Err(rejection) if is_restored => self.leave_undecided(pod, &rejection),
            Err(rejection) if rejection.reason == NODE_AFFINITY && told.is_none() => {
                self.ask_for_node(pod, rejection);
            }
            Err(rejection) => self.reject(pod, rejection),
        }
    }

    /// Gives a pod to its worker. The pods that follow do not have its room, unless it is `done`.
    pub(super) fn run_admitted(&self, pod: &Arc<Pod>, done: bool) {
        info!(pod = identity::full_name(pod), pod_uid = %PodUid::of(pod), "pod added");
        if !done {
            self.runtime.place(pod);
        }
        self.workers.update(pod);
    }

    /// Whether something of the pod runs, as far as the runtime has told.
    pub(super) fn runs(&self, uid: &PodUid) -> bool {
        let listing = self.pleg.listing();
        let record = listing.records.get(uid);
        record.is_some_and(|record| record.runs())
    }

    /// Leaves a checkpointed pod that would be rejected to the API server, which may not have it any
    /// more.
    pub(super) fn leave_undecided(&mut self, pod: &Pod, rejection: &Rejection) {
        let uid = PodUid::of(pod);
        warn!(
            pod = identity::full_name(pod), pod_uid = %uid, reason = rejection.reason,
            message = rejection.message, "pod waits for the API server: it would be rejected"
        );
        self.undecided.insert(uid);
    }

    /// Rejects the pod. Its running containers end first, and its resource claims are released; only then
    /// does it fail, so that its replacement does not run beside it or with its devices.
    pub(super) fn reject(&mut self, pod: &Arc<Pod>, rejection: Rejection) {
        let uid = PodUid::of(pod);
        warn!(
            pod = identity::full_name(pod), pod_uid = %uid, reason = rejection.reason,
            message = rejection.message, "pod rejected"
        );
        self.admission.count_rejection(&rejection);
        self.events
            .warning(Subject::Pod(pod), &rejection.reason, &rejection.message);
        let message = format!("Pod was rejected: {}", rejection.message);
        let listing = self.pleg.listing();
        let runs = listing.at.is_none() || listing.records.contains_key(&uid);
        if !runs && !self.runtime.has_claims(&uid) {
            self.rejected.insert(uid);
            self.statuses.reject(pod, &rejection.reason, message);
            return;
        }
        self.workers.update(pod);
        let kill = Kill {
            verdict: Some(Verdict {
                always_fails: true,
                reason: rejection.reason,
                message,
                disruption: None,
            }),
            ..Kill::default()
        };
        self.workers.kill(&uid, kill);
    }

    /// Kills pods to make room for a critical pod.
    fn preempt(&mut self, pod: &Pod, victims: &[Arc<Pod>]) {
        let uid = PodUid::of(pod);
        info!(
            pod = identity::full_name(pod), pod_uid = %uid, victims = victims.len(),
            "pod waits for preempted pods to terminate"
        );
        let victims = preemption::end(victims, pod, self.workers, self.events);
        self.waiting.add_for_pods(uid, victims);
    }

    /// The other active pods, with the resources granted to them. Undecided pods do not count.
    fn active_pods_beside(&self, uid: &PodUid) -> Vec<Arc<Pod>> {
        let others = active_pods(self.pods, self.statuses, self.workers).into_iter();
        others
            .filter(|other| {
                let other = PodUid::of(other);
                other != *uid && !self.undecided.contains(&other)
            })
            .map(|other| self.runtime.granted(&other))
            .collect()
    }
}
