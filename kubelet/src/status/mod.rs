//! Status of pods: what it is, and the one that was last reported of each.

mod conclusion;
pub mod conditions;
mod container_state;
mod containers;
mod details;
mod generate;
mod held_back;
mod patch;
mod phase;
mod quantities;
mod readiness;
mod restart_all;
pub mod sync;
mod verdict;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus as ApiStatus};
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_host::{clock, host_ips::HostIps};
use kubelet_metrics::{Collector, Exposition, Family, Histogram};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    known_status,
    phase::Phase,
    qos::QosClass,
};
use kubelet_prober::results::ProbeResults;
use kubelet_runtime::{pod_state::Waiting, resize::ResizeReport};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tracing::info;

use self::generate::Node;
pub use self::verdict::Verdict;
use crate::pod::rejection::Rejection;

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
    /// Why it is not run for now, if it is not.
    pub held_back: Option<&'a Rejection>,
    /// How far a resize of the pod came, if there was one.
    pub resize: Option<&'a ResizeReport>,
}

/// The status of a pod as it was last reported.
#[derive(Clone, Debug)]
struct Report {
    status: Arc<ApiStatus>,
    /// When the status became this one.
    changed: Instant,
    /// Grows with every report of any pod.
    version: u64,
    /// No container of the pod runs any more, or ever will.
    stopped: bool,
    /// Nothing of the pod is left to be given back to the node.
    finished: bool,
}

#[derive(Debug, Default)]
struct Reports {
    by_uid: BTreeMap<PodUid, Report>,
    version: u64,
}

impl Reports {
    /// The report of a pod, as a new version.
    fn renew(&mut self, uid: &PodUid) -> Option<&mut Report> {
        self.version += 1;
        let report = self.by_uid.get_mut(uid)?;
        report.version = self.version;
        Some(report)
    }
}

/// The last status of each pod.
#[derive(Debug)]
pub struct StatusManager {
    host_ips: HostIps,
    probes: Arc<ProbeResults>,
    /// When this kubelet was started.
    begun: Timestamp,
    reports: Mutex<Reports>,
    /// What an earlier kubelet knew of pods that were not told yet.
    remembered: Mutex<BTreeMap<PodUid, ApiStatus>>,
    changed: watch::Sender<()>,
    sync_durations: Family<Histogram, 0>,
}

/// How long statuses take to the API server, as upstream's buckets.
const SYNC_BUCKETS: &[f64] = &[0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];

impl StatusManager {
    /// A manager that knows no pod. The node's addresses are `host_ips`, what probes found
    /// is in `probes`.
    pub fn new(host_ips: HostIps, probes: Arc<ProbeResults>) -> Self {
        Self {
            host_ips,
            probes,
            begun: clock::now(),
            reports: Mutex::default(),
            remembered: Mutex::default(),
            changed: watch::Sender::new(()),
            sync_durations: Family::histogram(
                "kubelet_pod_status_sync_duration_seconds",
                "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
                [],
                SYNC_BUCKETS,
            ),
        }
    }

    /// The last status of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<ApiStatus>> {
        let reports = self.reports.lock();
        reports
            .by_uid
            .get(uid)
            .map(|report| Arc::clone(&report.status))
    }

    /// Has what an earlier kubelet knew of its pods, for when they are told.
    pub fn remember(&self, statuses: BTreeMap<PodUid, ApiStatus>) {
        *self.remembered.lock() = statuses;
    }

    /// A pod is told for the first time. What an earlier kubelet knew of it and its source
    /// does not is in its first status: no container that ended for good is run again
    /// because the API server was away when it did. Returns whether the pod is known to
    /// have ended.
    pub fn recall(&self, pod: &Pod) -> bool {
        let Some(known) = self.remembered.lock().remove(&PodUid::of(pod)) else {
            return false;
        };
        let of_source = pod.status.clone().unwrap_or_default();
        let status = known_status::with_known(of_source, &known);
        let has_ended = is_terminal(&status);
        self.set(pod, status, false);
        has_ended
    }

    /// Every pod was told: whatever is still remembered is of others.
    pub fn forget_remembered(&self) {
        self.remembered.lock().clear();
    }

    /// Wakes whenever a status changes.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Makes the pod's status out of `facts` and keeps it; returns its phase.
    pub fn update(&self, pod: &Pod, facts: Facts<'_>) -> Phase {
        let uid = PodUid::of(pod);
        let mut old = self.get(&uid).unwrap_or_else(|| {
            // What the source knows: the phase and conditions that others set.
            Arc::new(pod.status.clone().unwrap_or_default())
        });
        // Others may have ended the pod, and what is ended is never run again.
        if let Some(source) = &pod.status
            && is_terminal(source)
            && !is_terminal(&old)
        {
            let old = Arc::make_mut(&mut old);
            old.phase.clone_from(&source.phase);
            old.reason.clone_from(&source.reason);
            old.message.clone_from(&source.message);
        }
        let status = match &pod.spec {
            Some(spec) => generate::generate(&self.node(), pod, spec, &old, facts),
            None => ApiStatus::clone(&old),
        };
        let phase = Phase::parse(status.phase.as_deref());
        self.set(pod, status, facts.ending);
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

    /// Whether the pod's source has a status of it that changes what becomes of the pod:
    /// others have ended it, or a readiness gate is another than was reported.
    pub fn is_affected_by(&self, pod: &Pod) -> bool {
        let Some((source, spec)) = pod.status.as_ref().zip(pod.spec.as_ref()) else {
            return false;
        };
        let Some(status) = self.get(&PodUid::of(pod)) else {
            return false;
        };
        let gate = |status: &ApiStatus, type_: &str| {
            let mut conditions = status.conditions.iter().flatten();
            conditions
                .find(|c| c.type_ == type_)
                .map(|c| c.status.clone())
        };
        let mut gates = spec.readiness_gates.iter().flatten();
        (is_terminal(source) && !is_terminal(&status))
            || gates.any(|g| gate(source, &g.condition_type) != gate(&status, &g.condition_type))
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
        self.set(pod, status, true);
        self.finish(&PodUid::of(pod));
    }

    /// Everything that the pod had on the node is given back.
    pub fn finish(&self, uid: &PodUid) {
        if let Some(report) = self.reports.lock().renew(uid) {
            report.finished = true;
        }
        self.changed.send_replace(());
    }

    /// Whoever has statuses sent is to look at the pod, though its status is as before.
    pub fn renew(&self, uid: &PodUid) {
        self.reports.lock().renew(uid);
        self.changed.send_replace(());
    }

    /// Forgets a pod.
    pub fn remove(&self, uid: &PodUid) {
        self.reports.lock().by_uid.remove(uid);
    }

    /// Every report, by the pods' UIDs.
    fn reports(&self) -> Vec<(PodUid, Report)> {
        let reports = self.reports.lock();
        let all = reports.by_uid.iter();
        let mut all: Vec<_> = all.map(|(uid, r)| (uid.clone(), r.clone())).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    fn set(&self, pod: &Pod, status: ApiStatus, stopped: bool) {
        let uid = PodUid::of(pod);
        let mut reports = self.reports.lock();
        let old = reports.by_uid.get(&uid);
        let stopped = stopped || old.is_some_and(|old| old.stopped);
        if old.is_some_and(|old| *old.status == status && old.stopped == stopped) {
            return;
        }
        let finished = old.is_some_and(|old| old.finished);
        let old_phase = old.and_then(|old| old.status.phase.as_deref());
        if old_phase != status.phase.as_deref() {
            info!(
                pod = identity::full_name(pod), pod_uid = %uid, phase = status.phase,
                reason = status.reason, message = status.message, "pod phase"
            );
        }
        reports.version += 1;
        let report = Report {
            status: Arc::new(status),
            changed: Instant::now(),
            version: reports.version,
            stopped,
            finished,
        };
        reports.by_uid.insert(uid, report);
        drop(reports);
        self.changed.send_replace(());
    }

    /// Puts a status in the place of `old`; whether that was still there.
    fn replace(&self, uid: &PodUid, old: &Arc<ApiStatus>, status: ApiStatus) -> bool {
        let mut reports = self.reports.lock();
        let now = reports.by_uid.get(uid);
        if !now.is_some_and(|now| Arc::ptr_eq(&now.status, old)) {
            return false;
        }
        if let Some(now) = reports.renew(uid) {
            now.status = Arc::new(status);
            now.changed = Instant::now();
        }
        drop(reports);
        self.changed.send_replace(());
        true
    }

    fn node(&self) -> Node<'_> {
        Node {
            host_ips: &self.host_ips,
            given_ips: self.host_ips.given(),
            probes: &self.probes,
            begun: self.begun,
        }
    }
}

impl Collector for StatusManager {
    /// How fast statuses get to the API server.
    fn collect(&self, page: &mut Exposition) {
        self.sync_durations.collect(page);
    }
}

fn is_terminal(status: &ApiStatus) -> bool {
    Phase::parse(status.phase.as_deref()).is_terminal()
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
            held_back: None,
            resize: None,
        };
        manager.update(&pod, facts);
        manager.get(&PodUid::of(&pod)).unwrap()
    }

    #[test]
    fn a_verdict_is_the_pods_last_phase_with_its_reason() {
        let manager = StatusManager::new(HostIps::default(), Arc::default());
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
