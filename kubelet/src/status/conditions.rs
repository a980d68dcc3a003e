//! Pod conditions.

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus as ApiStatus,
};
use kubelet_cri_client::pod_status::PodStatus;
use kubelet_host::clock;
use kubelet_pod_spec::{phase::Phase, restart_rules};
use kubelet_runtime::{
    actions::{self, SandboxNeed},
    resize::{RESIZE_IN_PROGRESS, RESIZE_PENDING},
};

use super::{
    container_state::{is_running, is_terminated},
    restart_all,
};

/// The pod's sandbox and network are set up.
pub const READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
/// All init containers have completed.
pub const INITIALIZED: &str = "Initialized";
/// The pod can serve requests.
pub const READY: &str = "Ready";
/// All containers are ready.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// Reason of `Ready` when all containers are ready, but a readiness gate is not met.
pub(super) const GATES_NOT_READY: &str = "ReadinessGatesNotReady";
/// The pod is assigned to a node.
pub const POD_SCHEDULED: &str = "PodScheduled";

/// Whether a condition is owned by the kubelet.
pub fn is_kubelets(type_: &str) -> bool {
    matches!(
        type_,
        READY_TO_START_CONTAINERS
            | INITIALIZED
            | READY
            | CONTAINERS_READY
            | POD_SCHEDULED
            | RESIZE_PENDING
            | RESIZE_IN_PROGRESS
            | restart_all::ALL_CONTAINERS_RESTARTING
    )
}

/// The inputs of the conditions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub(super) pod: &'a Pod,
    pub(super) spec: &'a PodSpec,
    pub(super) status: &'a PodStatus,
    /// Whether a sandbox was created that `status` does not show yet.
    pub(super) sandbox_made: bool,
    pub(super) old: &'a ApiStatus,
    pub(super) phase: Phase,
    pub(super) init: &'a [ContainerStatus],
    pub(super) containers: &'a [ContainerStatus],
    /// Whether all containers are being restarted.
    pub(super) restarting_all: bool,
}

/// The kubelet's conditions. Transition times of unchanged conditions are taken from the old
/// status. `others` are the pod's other conditions.
pub(super) fn conditions(inputs: Inputs<'_>, others: &[PodCondition]) -> Vec<PodCondition> {
    let Inputs { spec, status, .. } = inputs;
    let sandbox = inputs.sandbox_made
        || matches!(
            actions::sandbox_need(spec, status),
            SandboxNeed::Keep { .. }
        );
    let (ready, containers_ready) = readiness(inputs, others);
    let mut all = vec![
        (READY_TO_START_CONTAINERS, Finding::of(sandbox)),
        (INITIALIZED, initialized(inputs)),
        (READY, ready),
        (CONTAINERS_READY, containers_ready),
        (POD_SCHEDULED, Finding::of(true)),
    ];
    if restart_rules::can_restart_all(spec) {
        all.push((
            restart_all::ALL_CONTAINERS_RESTARTING,
            all_restarting(inputs),
        ));
    }
    let all = all.into_iter();
    all.map(|(type_, finding)| finding.condition(type_, inputs.pod, inputs.old))
        .collect()
}

/// Updates `Ready` and `ContainersReady` in `conditions` from the containers' readiness.
pub(super) fn set_readiness(inputs: Inputs<'_>, conditions: &mut [PodCondition]) {
    let (ready, containers_ready) = readiness(inputs, conditions);
    for (type_, finding) in [(READY, ready), (CONTAINERS_READY, containers_ready)] {
        if let Some(condition) = conditions.iter_mut().find(|c| c.type_ == type_) {
            *condition = finding.condition(type_, inputs.pod, inputs.old);
        }
    }
}

/// The findings for `Ready` and `ContainersReady`.
fn readiness(inputs: Inputs<'_>, others: &[PodCondition]) -> (Finding, Finding) {
    let containers_ready = containers_ready(inputs);
    let ready = if containers_ready.status {
        gates_ready(inputs.spec, others)
    } else {
        containers_ready.clone()
    };
    (ready, containers_ready)
}

/// A condition's status, reason and message.
#[derive(Clone, Debug)]
struct Finding {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Finding {
    const fn of(status: bool) -> Self {
        Self {
            status,
            reason: None,
            message: None,
        }
    }

    const fn because(status: bool, reason: &'static str) -> Self {
        Self {
            status,
            reason: Some(reason),
            message: None,
        }
    }

    /// The condition; an unchanged status keeps its transition time.
    fn condition(self, type_: &str, pod: &Pod, old: &ApiStatus) -> PodCondition {
        let status = if self.status { "True" } else { "False" };
        let same = old
            .conditions
            .iter()
            .flatten()
            .find(|old| old.type_ == type_ && old.status == status);
        PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.map(str::to_owned),
            message: self.message,
            observed_generation: pod.metadata.generation,
            last_transition_time: same
                .and_then(|old| old.last_transition_time.clone())
                .or_else(|| Some(clock::now_time())),
            ..PodCondition::default()
        }
    }
}

/// Names of the containers without a status, and of those that fail a check.
#[derive(Default)]
struct Lacking<'a> {
    unknown: Vec<&'a str>,
    lacking: Vec<&'a str>,
}

impl<'a> Lacking<'a> {
    fn check(
        &mut self,
        container: &'a Container,
        statuses: &[ContainerStatus],
        is_fine: impl Fn(&ContainerStatus) -> bool,
    ) {
        match statuses.iter().find(|s| s.name == container.name) {
            None => self.unknown.push(&container.name),
            Some(status) if !is_fine(status) => self.lacking.push(&container.name),
            Some(_) => {}
        }
    }

    /// True if no container is listed.
    fn finding(self, state: &str, reason: &'static str) -> Finding {
        let list = |state: &str, names: Vec<&str>| {
            let names = names.join(" ");
            (!names.is_empty()).then(|| format!("containers with {state} status: [{names}]"))
        };
        let messages: Vec<String> = [list("unknown", self.unknown), list(state, self.lacking)]
            .into_iter()
            .flatten()
            .collect();
        if messages.is_empty() {
            return Finding::of(true);
        }
        Finding {
            message: Some(messages.join(", ")),
            ..Finding::because(false, reason)
        }
    }
}

fn containers_ready(inputs: Inputs<'_>) -> Finding {
    let Inputs { spec, phase, .. } = inputs;
    let mut lacking = Lacking::default();
    for sidecar in spec.init_containers.iter().flatten() {
        if restart_rules::is_sidecar(sidecar) {
            lacking.check(sidecar, inputs.init, |status| status.ready);
        }
    }
    for container in &spec.containers {
        lacking.check(container, inputs.containers, |status| status.ready);
    }
    match phase {
        Phase::Succeeded if lacking.unknown.is_empty() => Finding::because(false, "PodCompleted"),
        Phase::Failed => Finding::because(false, "PodFailed"),
        _ => lacking.finding("unready", "ContainersNotReady"),
    }
}

fn initialized(inputs: Inputs<'_>) -> Finding {
    let mut lacking = Lacking::default();
    for init in inputs.spec.init_containers.iter().flatten() {
        lacking.check(init, inputs.init, |status| {
            if restart_rules::is_sidecar(init) {
                status.started == Some(true)
            } else {
                status.ready
            }
        });
    }
    if inputs.phase == Phase::Succeeded && lacking.unknown.is_empty() {
        return Finding::because(true, "PodCompleted");
    }
    // A started regular container implies initialisation, whatever the state of the init
    // containers.
    let any_started = inputs
        .containers
        .iter()
        .any(|status| is_running(status) || is_terminated(status));
    // A pod stays initialised when its containers are restarted.
    let was = || {
        let old = inputs.old.conditions.iter().flatten();
        old.into_iter()
            .any(|old| old.type_ == INITIALIZED && old.status == "True")
    };
    if any_started || was() {
        return Finding::of(true);
    }
    lacking.finding("incomplete", "ContainersNotInitialized")
}

fn all_restarting(inputs: Inputs<'_>) -> Finding {
    match inputs.phase {
        Phase::Succeeded => Finding::because(false, "PodCompleted"),
        Phase::Failed => Finding::because(false, "PodFailed"),
        _ if restart_all::is_cleaned_up(inputs.spec, inputs.status) => Finding::of(false),
        _ if inputs.restarting_all => Finding {
            message: Some("container exited with restart policy rule".to_owned()),
            ..Finding::because(true, "RestartAllContainersStarted")
        },
        _ => Finding::of(false),
    }
}

fn gates_ready(spec: &PodSpec, gates: &[PodCondition]) -> Finding {
    let messages: Vec<String> = spec
        .readiness_gates
        .iter()
        .flatten()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match gates.iter().find(|condition| condition.type_ == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {name:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => Some(format!(
                    "the status of pod readiness gate {name:?} is not \"True\", but {}",
                    condition.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if messages.is_empty() {
        return Finding::of(true);
    }
    Finding {
        message: Some(messages.join(", ")),
        ..Finding::because(false, GATES_NOT_READY)
    }
}

#[cfg(test)]
mod tests;
