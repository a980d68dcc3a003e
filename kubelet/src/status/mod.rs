//! Status of pods: what it is, and the one that was last reported of each.

mod conditions;
mod containers;
mod phase;
mod verdict;

use std::{collections::HashMap, sync::Arc};

use k8s_openapi::api::core::v1::{HostIP, Pod, PodCondition, PodIP, PodStatus as ApiStatus};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::info;

use self::containers::Inputs;
pub use self::{phase::Phase, verdict::Verdict};
use crate::{
    clock,
    config::options::Options,
    pod::identity::{self, PodUid},
    runtime::{pod_state::Waiting, pod_status::PodStatus, resources::QosClass},
};

/// What a pod's status is made from, beside the pod.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What the runtime has of the pod.
    pub status: &'a PodStatus,
    /// Why containers could not be started.
    pub waiting: &'a std::collections::BTreeMap<String, Waiting>,
    /// Name of the runtime.
    pub runtime_name: &'a str,
    /// Whether the pod is being ended, so that nothing is started again.
    pub ending: bool,
    /// What was decided on the pod's end, if anything was.
    pub verdict: Option<&'a Verdict>,
}

/// The last status of each pod.
#[derive(Debug)]
pub struct StatusManager {
    options: Arc<Options>,
    statuses: Mutex<HashMap<PodUid, Arc<ApiStatus>>>,
    changed: watch::Sender<()>,
}

impl StatusManager {
    /// A manager that knows no pod.
    pub fn new(options: Arc<Options>) -> Self {
        Self {
            options,
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
        let status = self.generate(pod, &old, facts);
        let phase = Phase::parse(status.phase.as_deref());
        self.set(pod, status);
        phase
    }

    /// The pod is not run at all.
    pub fn reject(&self, pod: &Pod, reason: &str, message: String) {
        let status = ApiStatus {
            phase: Some(Phase::Failed.as_str().to_owned()),
            reason: Some(reason.to_owned()),
            message: Some(message),
            start_time: Some(clock::now_time()),
            qos_class: qos_class(pod),
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

    fn generate(&self, pod: &Pod, old: &ApiStatus, facts: Facts<'_>) -> ApiStatus {
        let Some(spec) = &pod.spec else {
            return old.clone();
        };
        let inputs = Inputs {
            spec,
            status: facts.status,
            old,
            waiting: facts.waiting,
            runtime_name: facts.runtime_name,
        };
        let init = containers::init_container_statuses(inputs);
        let containers = containers::container_statuses(inputs);
        let old_phase = Phase::parse(old.phase.as_deref());
        // A pod that is done never runs again, and what ended it stays true.
        let verdict = facts.verdict.filter(|_| !old_phase.is_terminal());
        let phase = match verdict {
            Some(verdict) => verdict.phase,
            None if old_phase.is_terminal() => old_phase,
            None => phase::phase(spec, &init, &containers, facts.ending),
        };
        let (reason, message) = match verdict {
            Some(verdict) => (Some(verdict.reason.clone()), Some(verdict.message.clone())),
            // They belong to the phase.
            None if phase == old_phase => (old.reason.clone(), old.message.clone()),
            None => (None, None),
        };
        let old_conditions = old.conditions.as_deref().unwrap_or_default();
        let mut conditions = conditions::conditions(
            pod,
            spec,
            facts.status,
            phase,
            &init,
            &containers,
            old_conditions,
        );
        keep_times(&mut conditions, old_conditions);
        let others = old_conditions
            .iter()
            .filter(|old| conditions.iter().all(|new| new.type_ != old.type_));
        let others: Vec<PodCondition> = others.cloned().collect();
        conditions.extend(others);

        let host_ips: Vec<String> = self
            .options
            .node_ips
            .iter()
            .map(ToString::to_string)
            .collect();
        let pod_ips = if spec.host_network == Some(true) {
            &host_ips
        } else {
            facts.status.ips()
        };
        ApiStatus {
            phase: Some(phase.as_str().to_owned()),
            conditions: Some(conditions),
            init_container_statuses: (!init.is_empty()).then_some(init),
            container_statuses: Some(containers),
            host_ip: host_ips.first().cloned(),
            pod_ip: pod_ips.first().cloned(),
            pod_ips: some_list(pod_ips, |ip| PodIP { ip }),
            host_ips: some_list(&host_ips, |ip| HostIP { ip }),
            start_time: old.start_time.clone().or_else(|| start_time(facts.status)),
            qos_class: qos_class(pod),
            observed_generation: pod.metadata.generation,
            reason,
            message,
            ..ApiStatus::default()
        }
    }
}

/// When the pod was first run here: a kubelet that is started again finds its
/// sandboxes.
fn start_time(status: &PodStatus) -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
    let oldest = status.sandboxes.iter().map(|s| s.created_at).min();
    oldest
        .and_then(clock::from_nanos)
        .or_else(|| Some(clock::now_time()))
}

fn qos_class(pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    Some(QosClass::of(spec).as_str().to_owned())
}

fn some_list<T>(ips: &[String], wrap: impl Fn(String) -> T) -> Option<Vec<T>> {
    (!ips.is_empty()).then(|| ips.iter().cloned().map(wrap).collect())
}

/// A condition that is as it was has been so since then.
fn keep_times(conditions: &mut [PodCondition], old: &[PodCondition]) {
    for condition in conditions {
        let same = old
            .iter()
            .find(|old| old.type_ == condition.type_ && old.status == condition.status);
        condition.last_transition_time = same
            .and_then(|old| old.last_transition_time.clone())
            .or_else(|| Some(clock::now_time()));
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
            waiting: &std::collections::BTreeMap::new(),
            runtime_name: "fake",
            ending,
            verdict,
        };
        manager.update(&pod, facts);
        manager.get(&PodUid::of(&pod)).unwrap()
    }

    #[test]
    fn a_verdict_is_the_pods_last_phase_with_its_reason() {
        let manager = StatusManager::new(Arc::default());
        report(&manager, None, false);
        let verdict = Verdict {
            phase: Phase::Failed,
            reason: "DeadlineExceeded".to_owned(),
            message: "too late".to_owned(),
        };
        report(&manager, Some(&verdict), false);
        let last = report(&manager, None, true);
        assert_eq!(last.phase.as_deref(), Some("Failed"));
        assert_eq!(last.reason.as_deref(), Some("DeadlineExceeded"));
        assert_eq!(last.message.as_deref(), Some("too late"));
    }
}
