//! The status of pods: how it is computed, stored and sent to the API server.

pub mod conditions;
mod container_state;
mod containers;
mod details;
mod device_health;
mod final_status;
mod generate;
mod held_back;
mod metrics;
mod patch;
mod phase;
mod quantities;
mod readiness;
mod restart_all;
pub mod sync;
mod verdict;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, OnceLock},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus as ApiStatus};
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_dra_manager::DraManager;
use kubelet_host::{clock, host_ips::HostIps};
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    known_status,
    phase::Phase,
    qos::QosClass,
};
use kubelet_prober::results::ProbeResults;
use kubelet_resource_managers::ResourceManagers;
use kubelet_runtime::{pod_state::Waiting, resize::ResizeReport};
use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};
use tracing::info;

pub use self::verdict::Verdict;
use self::{generate::Node, metrics::StatusMetrics};
use crate::pod::{features::PodFeatures, rejection::Rejection, start_latency::StartLatencies};

/// The inputs of a pod's status, apart from the pod.
#[derive(Clone, Copy, Debug)]
pub struct StatusInputs<'a> {
    /// The pod's state in the runtime.
    pub status: &'a PodStatus,
    /// Whether a sandbox was created that `status` does not show yet.
    pub sandbox_made: bool,
    /// Why containers could not be started, by container name.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// Name of the runtime.
    pub runtime_name: &'a str,
    /// Whether the pod is terminating, so that no container is restarted.
    pub ending: bool,
    /// The kubelet's decision to end the pod, if any.
    pub verdict: Option<&'a Verdict>,
    /// Why the pod is held back, if it is.
    pub held_back: Option<&'a Rejection>,
    /// Progress of the pod's resize, if any.
    pub resize: Option<&'a ResizeReport>,
}

/// The last status of a pod.
#[derive(Clone, Debug)]
struct Report {
    status: Arc<ApiStatus>,
    /// When the status last changed.
    changed: Instant,
    /// Increases with every report of any pod.
    version: u64,
    /// No container of the pod runs, or will run again.
    stopped: bool,
    /// The pod's resources on the node are released.
    finished: bool,
}

#[derive(Debug, Default)]
struct Reports {
    by_uid: BTreeMap<PodUid, Report>,
    version: u64,
}

impl Reports {
    /// A pod's report with a new version.
    fn renew(&mut self, uid: &PodUid) -> Option<&mut Report> {
        self.version += 1;
        let report = self.by_uid.get_mut(uid)?;
        report.version = self.version;
        Some(report)
    }
}

/// Stores the last status of each pod.
#[derive(Debug)]
pub struct StatusManager {
    host_ips: HostIps,
    probes: Arc<ProbeResults>,
    managers: Arc<ResourceManagers>,
    dra: DraManager,
    features: PodFeatures,
    /// Start time of this kubelet.
    begun: Timestamp,
    was_given_up: Arc<OnceLock<bool>>,
    reports: Mutex<Reports>,
    /// Statuses from before a restart of the kubelet, of pods that no source has delivered yet.
    remembered: Mutex<BTreeMap<PodUid, ApiStatus>>,
    /// Static pods whose mirror pods were seen.
    mirrored: Mutex<BTreeSet<PodUid>>,
    /// Statuses of their mirror pods by an earlier kubelet, until their first own.
    earlier: Mutex<BTreeMap<PodUid, ApiStatus>>,
    changed: watch::Sender<()>,
    metrics: StatusMetrics,
    latencies: StartLatencies,
}

impl StatusManager {
    /// A manager without pods. `host_ips` are the node's addresses, `probes` the probe results;
    /// `managers` and `dra` know the devices of containers. `was_given_up` tells whether the node
    /// controller had given the node up before this kubelet, once that is known.
    pub fn new(
        host_ips: HostIps,
        probes: Arc<ProbeResults>,
        managers: Arc<ResourceManagers>,
        dra: DraManager,
        features: PodFeatures,
        was_given_up: Arc<OnceLock<bool>>,
    ) -> Self {
        Self {
            host_ips,
            probes,
            managers,
            dra,
            features,
            begun: clock::now(),
            was_given_up,
            reports: Mutex::default(),
            remembered: Mutex::default(),
            mirrored: Mutex::default(),
            earlier: Mutex::default(),
            changed: watch::Sender::new(()),
            metrics: StatusMetrics::default(),
            latencies: StartLatencies::default(),
        }
    }

    /// How long pods take to start.
    pub const fn latencies(&self) -> &StartLatencies {
        &self.latencies
    }

    /// Writes the number of terminations.
    pub fn collect_terminations(&self, page: &mut Exposition) {
        self.metrics.terminations.collect(page);
    }

    /// The last status of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<Arc<ApiStatus>> {
        let reports = self.reports.lock();
        reports
            .by_uid
            .get(uid)
            .map(|report| Arc::clone(&report.status))
    }

    /// Stores the statuses that an earlier kubelet recorded, for [`Self::recall`].
    pub fn remember(&self, statuses: BTreeMap<PodUid, ApiStatus>) {
        *self.remembered.lock() = statuses;
    }

    /// Called when a source first delivers a pod. Merges what an earlier kubelet recorded, and the
    /// source lacks, into the first status: a container that ended for good while the API server
    /// was away must not run again. Returns whether the pod is known to have ended.
    pub fn recall(&self, pod: &Pod) -> bool {
        let Some(known) = self.remembered.lock().remove(&PodUid::of(pod)) else {
            return false;
        };
        let of_source = pod.status.clone().unwrap_or_default();
        let status = known_status::with_progress_of(of_source, &known);
        let has_ended = is_terminal(&status);
        self.set(pod, status, false);
        has_ended
    }

    /// Called when a static pod and its mirror pod are both known. The first time, a status from an
    /// earlier kubelet becomes that of the pod if the same containers run, as the one of its source
    /// does for other pods: a restart of the kubelet leaves its readiness and its conditions as they
    /// are. After a reboot its status starts empty.
    pub fn adopt(&self, pod: &Pod, mirror: &Pod) {
        let uid = PodUid::of(pod);
        if !self.mirrored.lock().insert(uid.clone()) {
            return;
        }
        let Some(earlier) = mirror.status.clone().filter(|status| !is_terminal(status)) else {
            return;
        };
        match self.get(&uid) {
            None => _ = self.earlier.lock().insert(uid, earlier),
            Some(now) if known_status::runs_the_same(&now, &earlier) => {
                self.set(pod, earlier, false);
            }
            Some(_) => {}
        }
    }

    /// Called when all sources have delivered their pods: the remaining recorded statuses are of
    /// pods that no longer exist.
    pub fn forget_remembered(&self) {
        self.remembered.lock().clear();
    }

    /// Notifies of status changes.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Computes and stores the pod's status; returns its phase.
    pub fn update(&self, pod: &Pod, facts: StatusInputs<'_>) -> Phase {
        loop {
            let uid = PodUid::of(pod);
            let known = self.get(&uid);
            let mut status = self.computed(pod, known.clone(), facts);
            let earlier = self.earlier.lock().remove(&uid);
            let same = earlier.filter(|it| known_status::runs_the_same(&status, it));
            if let Some(earlier) = same.filter(|_| known.is_none()) {
                status = self.computed(pod, Some(Arc::new(earlier)), facts);
            }
            let phase = Phase::parse(status.phase.as_deref());
            if self.replace(pod, known.as_ref(), status, facts.ending) {
                return phase;
            }
        }
    }

    /// The pod's status, after the one that is `known`.
    fn computed(
        &self,
        pod: &Pod,
        known: Option<Arc<ApiStatus>>,
        facts: StatusInputs<'_>,
    ) -> ApiStatus {
        let mut old = known.unwrap_or_else(|| {
            // The source has the phase and the conditions of other owners.
            Arc::new(pod.status.clone().unwrap_or_default())
        });
        // Another component may have ended the pod; a terminal phase is final.
        if let Some(source) = &pod.status
            && is_terminal(source)
            && !is_terminal(&old)
        {
            let old = Arc::make_mut(&mut old);
            old.phase.clone_from(&source.phase);
            old.reason.clone_from(&source.reason);
            old.message.clone_from(&source.message);
        }
        let mut status = match &pod.spec {
            Some(spec) => generate::generate(&self.node(), pod, spec, &old, facts),
            None => ApiStatus::clone(&old),
        };
        device_health::set(&mut status, pod, self.managers.devices(), &self.dra);
        status
    }

    /// Called when a probe result changes: updates readiness at once, even during a sync of the
    /// pod. Does nothing for a pod without a status.
    pub fn probed(&self, pod: &Pod) {
        let uid = PodUid::of(pod);
        // The pod's worker may store a status at the same time; retry, so that neither is lost.
        while let (Some(old), Some(spec)) = (self.get(&uid), &pod.spec) {
            let status = generate::with_readiness(&self.node(), pod, spec, &old);
            if *old == status || self.replace(pod, Some(&old), status, false) {
                return;
            }
        }
    }

    /// Whether the source's status affects the pod: another component ended it, or the condition of
    /// a readiness gate differs from the stored status.
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

    /// Whether all containers are being restarted (condition `AllContainersRestarting`) according
    /// to the last status.
    pub fn restarts_all(&self, uid: &PodUid) -> bool {
        self.get(uid)
            .is_some_and(|status| restart_all::is_under_way(&status))
    }

    /// Stores the status of a rejected pod.
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

    /// The pod's resources on the node are released.
    pub fn finish(&self, uid: &PodUid) {
        if let Some(report) = self.reports.lock().renew(uid) {
            report.finished = true;
        }
        self.changed.send_replace(());
    }

    /// Makes [`sync::StatusSync`] look at the pod again, although its status is unchanged.
    pub fn renew(&self, uid: &PodUid) {
        self.reports.lock().renew(uid);
        self.changed.send_replace(());
    }

    /// Forgets a pod.
    pub fn remove(&self, uid: &PodUid) {
        self.mirrored.lock().remove(uid);
        self.earlier.lock().remove(uid);
        self.latencies.remove(uid);
        self.reports.lock().by_uid.remove(uid);
    }

    /// All reports, sorted by pod UID.
    fn reports(&self) -> Vec<(PodUid, Report)> {
        let reports = self.reports.lock();
        let all = reports.by_uid.iter();
        let mut all: Vec<_> = all.map(|(uid, r)| (uid.clone(), r.clone())).collect();
        all.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        all
    }

    fn set(&self, pod: &Pod, status: ApiStatus, stopped: bool) {
        self.store(self.reports.lock(), pod, status, stopped);
    }

    /// Replaces the status that is `known`; returns `false` if it was replaced meanwhile.
    fn replace(
        &self,
        pod: &Pod,
        known: Option<&Arc<ApiStatus>>,
        status: ApiStatus,
        stopped: bool,
    ) -> bool {
        let reports = self.reports.lock();
        let now = reports.by_uid.get(&PodUid::of(pod));
        let is_same = match (now, known) {
            (Some(now), Some(known)) => Arc::ptr_eq(&now.status, known),
            (now, known) => now.is_none() && known.is_none(),
        };
        if is_same {
            self.store(reports, pod, status, stopped);
        }
        is_same
    }

    fn store(
        &self,
        mut reports: MutexGuard<'_, Reports>,
        pod: &Pod,
        status: ApiStatus,
        stopped: bool,
    ) {
        let uid = PodUid::of(pod);
        let old = reports.by_uid.get(&uid);
        let stopped = stopped || old.is_some_and(|old| old.stopped);
        if old.is_some_and(|old| *old.status == status && old.stopped == stopped) {
            return;
        }
        let last = old.map(|old| &*old.status).or(pod.status.as_ref());
        self.metrics.count_terminations(last, &status);
        let finished = old.is_some_and(|old| old.finished);
        let old_phase = old.and_then(|old| old.status.phase.as_deref());
        if old_phase != status.phase.as_deref() {
            info!(
                pod = identity::full_name(pod), pod_uid = %uid, phase = status.phase,
                reason = status.reason, message = status.message, "pod phase changed"
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

    fn node(&self) -> Node<'_> {
        Node {
            host_ips: &self.host_ips,
            given_ips: self.host_ips.given(),
            probes: &self.probes,
            begun: self.begun,
            was_given_up: self.was_given_up.get() == Some(&true),
            features: self.features,
        }
    }
}

impl Collector for StatusManager {
    /// The durations of status syncs and pod starts, which end at the API server.
    fn collect(&self, page: &mut Exposition) {
        self.metrics.sync_durations.collect(page);
        self.latencies.collect(page);
    }
}

fn is_terminal(status: &ApiStatus) -> bool {
    Phase::parse(status.phase.as_deref()).is_terminal()
}

#[cfg(test)]
mod tests;
