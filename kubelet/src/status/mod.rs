//! Status of pods: what it is, and the one that was last reported of each.

mod conclusion;
pub mod conditions;
mod containers;
mod details;
mod generate;
pub mod ips;
mod phase;
mod quantities;
mod readiness;
mod restart_all;
mod verdict;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus as ApiStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::info;

use self::generate::Node;
pub use self::{phase::Phase, verdict::Verdict};
use crate::{
    clock,
    config::options::Options,
    pod::identity::{self, PodUid},
    prober::results::ProbeResults,
    runtime::{
        pod_state::Waiting, pod_status::PodStatus, resize::ResizeReport, resources::QosClass,
    },
};

/// What a pod's status is made from, beside the pod.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What the runtime has of the pod.
    pub status: &'a PodStatus,
    /// Why containers could not be started.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// Name of the runtime.
    pub runtime_name: &'a str,
    /// Whether the pod is being ended, so that nothing is started again.
    pub ending: bool,
    /// What was decided on the pod's end, if anything was.
    pub verdict: Option<&'a Verdict>,
    /// How far a resize of the pod came, if there was one.
    pub resize: Option<&'a ResizeReport>,
}

/// The last status of each pod.
#[derive(Debug)]
pub struct StatusManager {
    options: Arc<Options>,
    probes: Arc<ProbeResults>,
    /// When this kubelet was started.
    begun: Timestamp,
    statuses: Mutex<HashMap<PodUid, Arc<ApiStatus>>>,
    changed: watch::Sender<()>,
}

impl StatusManager {
    /// A manager that knows no pod. What probes found is in `probes`.
    pub fn new(options: Arc<Options>, probes: Arc<ProbeResults>) -> Self {
        Self {
            options,
            probes,
            begun: clock::now(),
            statuses: Mutex::default(),
            changed: watch::Sender::new(()),
        }
    }

    /// The last status of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<ApiStatus>> {
        self.statuses.lock().get(uid).cloned()
    }

    /// Wakes whenever a status changes.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Makes the pod's status out of `facts` and keeps it; returns its phase.
    pub fn update(&self, pod: &Pod, facts: Facts<'_>) -> Phase {
        let uid = PodUid::of(pod);
        let old = self.get(&uid).unwrap_or_else(|| {
            // What the source knows: the phase and conditions that others set.
            Arc::new(pod.status.clone().unwrap_or_default())
        });
        let status = match &pod.spec {
            Some(spec) => generate::generate(&self.node(), pod, spec, &old, facts),
            None => ApiStatus::clone(&old),
        };
        let phase = Phase::parse(status.phase.as_deref());
        self.set(pod, status);
        phase
    }

    /// A probe of the pod found something else than before: shows at once which
    /// containers are ready, also while the pod is being synced. Nothing, for a
    /// pod without a status.
    pub fn probed(&self, pod: &Pod) {
        let uid = PodUid::of(pod);
        // The pod's worker may report meanwhile: what it says of the rest must stay.
        while let (Some(old), Some(spec)) = (self.get(&uid), &pod.spec) {
            let status = generate::with_readiness(&self.node(), pod, spec, &old);
            if *old == status || self.replace(&uid, &old, status) {
                return;
            }
        }
    }

    /// Whether every container of the pod is being started anew, as its last
    /// status says.
    pub fn restarts_all(&self, uid: &PodUid) -> bool {
        self.get(uid)
            .is_some_and(|status| restart_all::is_under_way(&status))
    }

    /// The pod is not run at all.
    pub fn reject(&self, pod: &Pod, reason: &str, message: String) {
        let status = ApiStatus {
            phase: Some(Phase::Failed.as_str().to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            start_time: Some(clock::now_time()),
            qos_class: pod
                .spec
                .as_ref()
                .map(|spec| QosClass::of(spec).as_str().to_owned()),
            observed_generation: pod.metadata.generation,
            ..ApiStatus::default()
        };
        self.set(pod, status);
    }

    /// Forgets a pod.
    pub fn remove(&self, uid: &PodUid) {
        self.statuses.lock().remove(uid);
    }

    fn set(&self, pod: &Pod, status: ApiStatus) {
        let uid = PodUid::of(pod);
        let old = self.get(&uid);
        if old.as_deref() == Some(&status) {
            return;
        }
        let old_phase = old.as_ref().and_then(|old| old.phase.as_deref());
        if old_phase != status.phase.as_deref() {
            info!(
                pod = identity::full_name(pod), pod_uid = %uid, phase = status.phase,
                reason = status.reason, message = status.message, "pod phase"
            );
        }
        self.statuses.lock().insert(uid, Arc::new(status));
        self.changed.send_replace(());
    }

    /// Puts a status in the place of `old`; whether that was still there.
    fn replace(&self, uid: &PodUid, old: &Arc<ApiStatus>, status: ApiStatus) -> bool {
        let mut statuses = self.statuses.lock();
        let Some(now) = statuses.get_mut(uid).filter(|now| Arc::ptr_eq(now, old)) else {
            return false;
        };
        *now = Arc::new(status);
        drop(statuses);
        self.changed.send_replace(());
        true
    }

    fn node(&self) -> Node<'_> {
        Node {
            ips: &self.options.node_ips,
            probes: &self.probes,
            begun: self.begun,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, PodSpec};

    use super::*;

    fn report(manager: &StatusManager, verdict: Option<&Verdict>, ending: bool) -> Arc<ApiStatus> {
        let pod = Pod {
            spec: Some(PodSpec {
                containers: vec![Container::default()],
                ..PodSpec::default()
            }),
            ..Pod::default()
        };
        let facts = Facts {
            status: &PodStatus::default(),
            waiting: &BTreeMap::new(),
            runtime_name: "fake",
            ending,
            verdict,
            resize: None,
        };
        manager.update(&pod, facts);
        manager.get(&PodUid::of(&pod)).unwrap()
    }

    #[test]
    fn a_verdict_is_the_pods_last_phase_with_its_reason() {
        let manager = StatusManager::new(Arc::default(), Arc::default());
        report(&manager, None, false);
        let verdict = Verdict {
            phase: Phase::Failed,
            reason: "DeadlineExceeded".to_owned(),
            message: "too late".to_owned(),
            disruption: None,
        };
        report(&manager, Some(&verdict), false);
        let last = report(&manager, None, true);
        assert_eq!(last.phase.as_deref(), Some("Failed"));
        assert_eq!(last.reason.as_deref(), Some("DeadlineExceeded"));
        assert_eq!(last.message.as_deref(), Some("too late"));
    }
}
