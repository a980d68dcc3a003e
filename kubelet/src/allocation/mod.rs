//! In-place resizes of running pods, as their specs request and as room permits.
//!
//! There is no list of pending resizes: each round finds them by comparing specs with granted
//! resources. So none is lost when the kubelet restarts.

mod order;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::EventRecorder;
use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_runtime::{
    RuntimeManager,
    resize::{ResizeRefusal, ResizeTrigger, is_resize},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, info};

use self::order::Place;
use crate::{
    lifecycle::{Admission, AdmissionOutcome, NodeSource, preemption},
    pod::manager::PodManager,
    pod_worker::{PodSyncer, PodWorkers},
};

/// Between two rounds of pending resizes if nothing happens, as upstream.
const RETRY_PERIOD: Duration = Duration::from_secs(3 * 60);
/// Between two checks whether all sources were read.
const SOURCES_PERIOD: Duration = Duration::from_secs(2);

/// Handles the resizes of all pods. Runs in the task of the sync loop, so that its view of pods
/// includes every update that the loop has received.
pub(crate) struct Allocator<'a, S> {
    pub(crate) admission: &'a Admission,
    pub(crate) node: &'a NodeSource,
    pub(crate) runtime: &'a RuntimeManager,
    pub(crate) pods: &'a PodManager,
    pub(crate) workers: &'a PodWorkers<S>,
    pub(crate) events: &'a EventRecorder,
    pub(crate) sources_ready: &'a (dyn Fn() -> bool + Send + Sync),
    /// Pods that are to grow, and the pods that must end first.
    pub(crate) waiting: BTreeMap<PodUid, Vec<PodUid>>,
}

/// The decision on a resize.
#[derive(Debug)]
enum Outcome {
    /// The resources are reserved, but not committed yet.
    Reserved,
    /// Other pods have to end first.
    Preempting(Vec<Arc<Pod>>),
    Refused(ResizeRefusal),
}

impl<S: PodSyncer> Allocator<'_, S> {
    /// Runs until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        loop {
            let is_ready = (self.sources_ready)();
            // Until then, it is unknown which other pods need room on the node.
            let wait = async {
                if is_ready {
                    tokio::select! {
                        trigger = self.runtime.resizes_wanted() => trigger,
                        () = tokio::time::sleep(RETRY_PERIOD) => ResizeTrigger::Periodic,
                    }
                } else {
                    tokio::time::sleep(SOURCES_PERIOD).await;
                    ResizeTrigger::Periodic
                }
            };
            let Some(trigger) = cancel.run_until_cancelled(wait).await else {
                return;
            };
            if (self.sources_ready)() {
                self.look(trigger).await;
            }
        }
    }

    /// Tries the resizes of all pods; repeats while one succeeds, because it may have freed room.
    async fn look(&mut self, trigger: ResizeTrigger) {
        self.waiting.retain(|_, victims| {
            victims.retain(|victim| {
                self.runtime.placed(victim).is_some() && !self.workers.has_settled(victim)
            });
            !victims.is_empty()
        });
        loop {
            let mut is_progress = false;
            for pod in self.resizes() {
                let span = identity::span(&identity::full_name(&pod), &PodUid::of(&pod));
                is_progress |= self.resize(&pod, trigger).instrument(span).await;
            }
            if !is_progress {
                return;
            }
        }
    }

    /// The pods that request other resources than they were granted, in order.
    fn resizes(&self) -> Vec<Arc<Pod>> {
        let mut resizes = Vec::new();
        for uid in self.runtime.placed_pods() {
            let Some((pod, placed)) = self.pods.get(&uid).zip(self.runtime.placed(&uid)) else {
                continue;
            };
            if pod.metadata.deletion_timestamp.is_some() {
                continue;
            }
            if is_resize(&pod, &placed) {
                let since = self.runtime.pending_since(&uid);
                resizes.push((Place::of(&pod, &placed, since), pod));
            } else if self.runtime.clear_pending(&uid) {
                self.workers.sync(&uid);
            }
        }
        resizes.sort_by(|(a, _), (b, _)| a.cmp(b));
        resizes.into_iter().map(|(_, pod)| pod).collect()
    }

    /// Returns whether the pod was resized.
    async fn resize(&mut self, pod: &Arc<Pod>, trigger: ResizeTrigger) -> bool {
        let uid = PodUid::of(pod);
        let Some(outcome) = self.decide(&uid, pod) else {
            return false;
        };
        let refusal = match outcome {
            Outcome::Reserved => {
                let is_granted = self.runtime.commit(&uid, trigger).await;
                if is_granted {
                    self.workers.sync(&uid);
                }
                return is_granted;
            }
            Outcome::Preempting(victims) => {
                let victims = preemption::end(&victims, pod, self.workers, self.events);
                self.waiting.insert(uid.clone(), victims);
                ResizeRefusal::Deferred("waiting for preempted pods to terminate".to_owned())
            }
            Outcome::Refused(refusal) => refusal,
        };
        if self.runtime.refuse(pod, &refusal) {
            info!(
                reason = refusal.reason(),
                message = refusal.message(),
                "pod resize was not granted"
            );
            self.workers.sync(&uid);
        }
        false
    }

    /// Decides on a resize; `None` if it waits for other pods to end, or if the pod has ended.
    fn decide(&self, uid: &PodUid, pod: &Arc<Pod>) -> Option<Outcome> {
        if self.waiting.contains_key(uid) {
            return None;
        }
        let _placing = self.runtime.placing();
        let placed = self.runtime.placed(uid)?;
        let admitted = self.runtime.check_swap(pod, &placed).and_then(|()| {
            let others = self.runtime.placed_beside(uid);
            let node = self.node.facts();
            self.admission.admit_resize(pod, &placed, &node, &others)
        });
        Some(match admitted {
            Ok(AdmissionOutcome::Now) => {
                self.runtime.reserve(pod);
                Outcome::Reserved
            }
            Ok(AdmissionOutcome::AfterPreemption(victims)) => Outcome::Preempting(victims),
            Err(refusal) => Outcome::Refused(refusal),
        })
    }
}
