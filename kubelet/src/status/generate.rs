//! Computes the status of a pod.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        ContainerState, ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec,
        PodStatus as ApiStatus, ResourceRequirements,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_host::{clock, host_ips::HostIps};
use kubelet_pod_spec::{identity, phase::Phase, qos::QosClass};
use kubelet_prober::results::ProbeResults;

use super::{
    StatusInputs, Verdict, conditions,
    containers::{self, Inputs},
    final_status::fail_unterminated,
    held_back, is_terminal, phase, quantities,
    readiness::{Kind, Readiness},
    restart_all,
};
use crate::pod::features::PodFeatures;

/// Total size of a pod's termination messages in bytes, as upstream.
const MAX_MESSAGES: usize = 12 * 1024;
/// Condition of a pod that the node or another component ends; never reset.
const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The inputs that are the same for all pods of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'a> {
    /// The node's addresses.
    pub(super) host_ips: &'a HostIps,
    /// The configured addresses, which determine the first IP family.
    pub(super) given_ips: &'a [IpAddr],
    pub(super) probes: &'a ProbeResults,
    /// Start time of this kubelet.
    pub(super) begun: Timestamp,
    /// The node controller had given the node up before this kubelet.
    pub(super) was_given_up: bool,
    pub(super) features: PodFeatures,
}

impl<'a> Node<'a> {
    fn readiness<'b>(&self, pod: &'b Pod, old: &'b ApiStatus) -> Readiness<'b>
    where
        'a: 'b,
    {
        Readiness {
            probes: self.probes,
            begun: self.begun,
            was_given_up: self.was_given_up,
            // The source of a static pod has no status; the last one may be that of its mirror pod.
            of_source: match identity::is_static(pod) {
                true => Some(old),
                false => pod.status.as_ref(),
            },
        }
    }
}

/// The status that follows from `facts` and the previous status `old`.
pub(super) fn generate(
    node: &Node<'_>,
    pod: &Pod,
    spec: &PodSpec,
    old: &ApiStatus,
    facts: StatusInputs<'_>,
) -> ApiStatus {
    let restarting_all = restart_all::is_due(spec, facts.status, old);
    let inputs = Inputs {
        pod,
        spec,
        status: facts.status,
        old,
        waiting: facts.waiting,
        runtime_name: facts.runtime_name,
        resize: facts.resize,
        readiness: node.readiness(pod, old),
        restarting_all,
    };
    let mut init = containers::init_container_statuses(inputs);
    let mut containers = containers::container_statuses(inputs);
    let mut ephemeral = containers::ephemeral_container_statuses(inputs);
    // Static pods show no final phase: they are removed when they end.
    let concluded = facts.ending && !identity::is_static(pod);
    let (phase, reason, message) = outcome(pod, old, facts, || {
        let phase = phase::phase(phase::Inputs {
            spec,
            init: &init,
            containers: &containers,
            initialized: has_active_container(spec, facts.status),
            ending: concluded,
        });
        if concluded && !phase.is_terminal() {
            Phase::Failed
        } else {
            phase
        }
    });
    if facts.held_back.is_some() {
        held_back::block(&mut init);
        held_back::block(&mut containers);
    }
    if facts.ending {
        fail_unterminated(spec, &mut init, &mut containers);
    }
    let all = [&mut init, &mut containers, &mut ephemeral];
    limit_messages(all);

    let conditions = all_conditions(
        conditions::Inputs {
            pod,
            spec,
            status: facts.status,
            sandbox_made: facts.sandbox_made,
            old,
            phase,
            init: &init,
            containers: &containers,
            restarting_all,
        },
        facts,
    );
    let host_ips = node.host_ips.now();
    let pod_ips = if spec.host_network == Some(true) {
        kubelet_pod_spec::pod_ips::on_host_network(old.pod_ips.as_ref(), &host_ips)
    } else {
        pod_ips(facts.status, node, old)
    };
    // They are there for the sake of resizes.
    let resources = node.features.pod_resize.then(|| quantities::of_pod(spec));
    ApiStatus {
        phase: Some(phase.as_str().to_owned()),
        conditions: Some(conditions),
        init_container_statuses: some_list(init),
        container_statuses: Some(containers),
        ephemeral_container_statuses: some_list(ephemeral),
        host_ip: host_ips.first().map(ToString::to_string),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: some_list(pod_ips.into_iter().map(|ip| PodIP { ip }).collect()),
        host_ips: some_list(
            host_ips
                .into_iter()
                .map(|ip| HostIP { ip: ip.to_string() })
                .collect(),
        ),
        start_time: old.start_time.clone().or_else(|| start_time(facts.status)),
        qos_class: Some(QosClass::of(spec).as_str().to_owned()),
        observed_generation: old.observed_generation.max(pod.metadata.generation),
        allocated_resources: resources.as_ref().and_then(|it| it.requests.clone()),
        resources: resources.map(|granted| resources_in_force(spec, facts, granted)),
        reason,
        message,
        ..ApiStatus::default()
    }
}

/// The old status with readiness updated from the probe results.
pub(super) fn with_readiness(
    node: &Node<'_>,
    pod: &Pod,
    spec: &PodSpec,
    old: &ApiStatus,
) -> ApiStatus {
    let mut status = old.clone();
    let readiness = node.readiness(pod, old);
    let set = |statuses: &mut [ContainerStatus], kind| {
        for status in statuses {
            let mut specs = match kind {
                Kind::Regular => spec.containers.iter(),
                Kind::Init => spec.init_containers.as_deref().unwrap_or_default().iter(),
            };
            if let Some(container) = specs.find(|c| c.name == status.name) {
                let had_started = status.started == Some(true);
                readiness.set(status, container, kind, had_started);
            }
        }
    };
    set(
        status.container_statuses.as_deref_mut().unwrap_or_default(),
        Kind::Regular,
    );
    set(
        status
            .init_container_statuses
            .as_deref_mut()
            .unwrap_or_default(),
        Kind::Init,
    );
    let inputs = conditions::Inputs {
        pod,
        spec,
        status: &PodStatus::default(),
        sandbox_made: false,
        old,
        phase: Phase::parse(old.phase.as_deref()),
        init: status
            .init_container_statuses
            .as_deref()
            .unwrap_or_default(),
        containers: status.container_statuses.as_deref().unwrap_or_default(),
        restarting_all: false,
    };
    let mut conditions = status.conditions.clone().unwrap_or_default();
    conditions::set_readiness(inputs, &mut conditions);
    status.conditions = Some(conditions);
    status
}

/// Phase, reason and message. A terminal phase is final, with its reason and message.
fn outcome(
    pod: &Pod,
    old: &ApiStatus,
    facts: StatusInputs<'_>,
    phase: impl Fn() -> Phase,
) -> (Phase, Option<String>, Option<String>) {
    let old_phase = Phase::parse(old.phase.as_deref());
    let phase = match (facts.verdict, facts.held_back) {
        (Some(verdict), _) if succeeds_nevertheless(verdict, pod, old, facts, &phase) => {
            return (Phase::Succeeded, None, None);
        }
        _ if old_phase.is_terminal() => old_phase,
        (Some(verdict), _) => {
            let (reason, message) = (verdict.reason.clone(), verdict.message.clone());
            return (Phase::Failed, Some(reason), Some(message));
        }
        (None, Some(why)) => {
            let (reason, message) = (why.reason.clone(), why.message.clone());
            return (Phase::Pending, Some(reason), Some(message));
        }
        (None, None) => phase(),
    };
    // Reason and message belong to the phase, except those of a pod that was held back and no
    // longer is.
    if phase == old_phase && !held_back::is_held_back(old) {
        (phase, old.reason.clone(), old.message.clone())
    } else {
        (phase, None, None)
    }
}

/// Whether a pod that the kubelet ended has succeeded. Its source must not know yet that it failed.
fn succeeds_nevertheless(
    verdict: &Verdict,
    pod: &Pod,
    old: &ApiStatus,
    facts: StatusInputs<'_>,
    phase: impl Fn() -> Phase,
) -> bool {
    let of_source = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    facts.ending
        && !verdict.always_fails
        && (!is_terminal(old) || old.reason.as_ref() == Some(&verdict.reason))
        && !Phase::parse(of_source).is_terminal()
        && phase() == Phase::Succeeded
}

/// Whether a regular container was created in the newest sandbox.
fn has_active_container(spec: &PodSpec, status: &PodStatus) -> bool {
    let is_regular = |name: &str| spec.containers.iter().any(|c| c.name == name);
    let mut runs = status.containers.iter();
    runs.any(|run| is_regular(&run.name) && status.is_active(run))
}

/// The conditions of others, those of a resize, and those that follow from `inputs`.
fn all_conditions(inputs: conditions::Inputs<'_>, facts: StatusInputs<'_>) -> Vec<PodCondition> {
    let mut conditions = others(inputs.pod, inputs.old);
    conditions.extend(disruption(inputs.pod, facts, &conditions));
    if let Some(resize) = facts.resize.filter(|_| !facts.ending) {
        conditions.extend(resize.conditions.iter().cloned());
    }
    let own = conditions::conditions(inputs, &conditions);
    conditions.extend(own);
    conditions
}

/// The conditions that the kubelet does not own, from the source, and the recorded
/// `DisruptionTarget`.
fn others(pod: &Pod, old: &ApiStatus) -> Vec<PodCondition> {
    let of_source = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let disruption = old.conditions.iter().flatten();
    let disruption = disruption.filter(|c| c.type_ == DISRUPTION_TARGET);
    of_source
        .into_iter()
        .flatten()
        .filter(|c| !conditions::is_kubelets(&c.type_) && c.type_ != DISRUPTION_TARGET)
        .chain(disruption)
        .cloned()
        .collect()
}

/// The `DisruptionTarget` condition of the verdict, unless the pod has one.
fn disruption(pod: &Pod, facts: StatusInputs<'_>, known: &[PodCondition]) -> Option<PodCondition> {
    let message = facts.verdict?.disruption.clone()?;
    let is_known = known.iter().any(|c| c.type_ == DISRUPTION_TARGET);
    (!is_known).then(|| PodCondition {
        type_: DISRUPTION_TARGET.to_owned(),
        status: "True".to_owned(),
        reason: Some("TerminationByKubelet".to_owned()),
        message: Some(message),
        observed_generation: pod.metadata.generation,
        last_transition_time: Some(clock::now_time()),
        ..PodCondition::default()
    })
}

/// The IPs of the pod's sandbox. When all sandboxes have ended, the last reported ones: they stay
/// visible, and the pod does not look like one on the host network.
fn pod_ips(status: &PodStatus, node: &Node<'_>, old: &ApiStatus) -> Vec<String> {
    let has_ended = !status.sandboxes.is_empty() && status.sandboxes.iter().all(|s| !s.ready);
    if has_ended {
        let old = old.pod_ips.iter().flatten();
        return old.map(|ip| ip.ip.clone()).collect();
    }
    kubelet_pod_spec::pod_ips::by_family(status.ips(), node.given_ips)
}

/// The pod's resources that are in force. They differ from `granted` during a resize.
fn resources_in_force(
    spec: &PodSpec,
    facts: StatusInputs<'_>,
    granted: ResourceRequirements,
) -> ResourceRequirements {
    match facts.resize.and_then(|resize| resize.whole.clone()) {
        None => granted,
        still => quantities::of_pod(&PodSpec {
            resources: still,
            ..spec.clone()
        }),
    }
}

/// When the pod was first started here: creation of its oldest sandbox, which may be an earlier
/// kubelet's.
fn start_time(status: &PodStatus) -> Option<Time> {
    let oldest = status.sandboxes.iter().map(|s| s.created_at).min();
    oldest
        .and_then(clock::from_nanos)
        .or_else(|| Some(clock::now_time()))
}

/// Truncates the termination messages to an equal share per container.
fn limit_messages(statuses: [&mut Vec<ContainerStatus>; 3]) {
    let containers: usize = statuses.iter().map(|statuses| statuses.len()).sum();
    let limit = MAX_MESSAGES / containers.max(1);
    let shorten = |state: &mut Option<ContainerState>| {
        let terminated = state.as_mut().and_then(|s| s.terminated.as_mut());
        let Some(message) = terminated.and_then(|t| t.message.as_mut()) else {
            return;
        };
        let mut end = limit.min(message.len());
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
    };
    for status in statuses.into_iter().flatten() {
        shorten(&mut status.state);
        shorten(&mut status.last_state);
    }
}

fn some_list<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}
