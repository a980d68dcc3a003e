//! Conditions of a pod.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodCondition, PodSpec};

use super::phase::Phase;
use crate::runtime::{
    actions::{self, SandboxNeed},
    pod_status::PodStatus,
};

/// The pod has a sandbox with a network.
pub const READY_TO_START_CONTAINERS: &str = "PodReadyToStartContainers";
/// All init containers are done.
pub const INITIALIZED: &str = "Initialized";
/// The pod serves.
pub const READY: &str = "Ready";
/// All containers are ready.
pub const CONTAINERS_READY: &str = "ContainersReady";
/// The pod has a node.
pub const POD_SCHEDULED: &str = "PodScheduled";

/// The conditions that the kubelet owns, without times. `gates` are the other
/// conditions that the pod has.
pub fn conditions(
    pod: &Pod,
    spec: &PodSpec,
    status: &PodStatus,
    phase: Phase,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
    gates: &[PodCondition],
) -> Vec<PodCondition> {
    let sandbox = matches!(
        actions::sandbox_need(spec, status),
        SandboxNeed::Keep { .. }
    );
    let containers_ready = containers_ready(spec, phase, containers);
    let ready = if containers_ready.is_true() {
        gates_ready(spec, gates)
    } else {
        containers_ready.clone()
    };
    [
        (READY_TO_START_CONTAINERS, Verdict::of(sandbox)),
        (INITIALIZED, initialized(spec, phase, init, containers)),
        (READY, ready),
        (CONTAINERS_READY, containers_ready),
        (POD_SCHEDULED, Verdict::of(true)),
    ]
    .into_iter()
    .map(|(type_, verdict)| PodCondition {
        type_: type_.to_owned(),
        status: if verdict.is_true() { "True" } else { "False" }.to_owned(),
        reason: verdict.reason().map(str::to_owned),
        message: verdict.message,
        observed_generation: pod.metadata.generation,
        ..PodCondition::default()
    })
    .collect()
}

/// Whether a condition holds, and why it does or does not.
#[derive(Clone, Debug)]
struct Verdict {
    status: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

impl Verdict {
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

    const fn is_true(&self) -> bool {
        self.status
    }

    const fn reason(&self) -> Option<&'static str> {
        self.reason
    }
}

/// `True` unless some containers are not as they should be.
fn unless(
    containers: &[Container],
    statuses: &[ContainerStatus],
    state: &str,
    reason: &'static str,
) -> Verdict {
    let (mut unknown, mut lacking) = (Vec::new(), Vec::new());
    for container in containers {
        match statuses.iter().find(|s| s.name == container.name) {
            None => unknown.push(container.name.as_str()),
            Some(status) if !status.ready => lacking.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    let list = |state: &str, names: Vec<&str>| {
        let names = names.join(" ");
        (!names.is_empty()).then(|| format!("containers with {state} status: [{names}]"))
    };
    let messages: Vec<String> = [list("unknown", unknown), list(state, lacking)]
        .into_iter()
        .flatten()
        .collect();
    if messages.is_empty() {
        return Verdict::of(true);
    }
    Verdict {
        message: Some(messages.join(", ")),
        ..Verdict::because(false, reason)
    }
}

fn containers_ready(spec: &PodSpec, phase: Phase, statuses: &[ContainerStatus]) -> Verdict {
    match phase {
        Phase::Succeeded => Verdict::because(false, "PodCompleted"),
        Phase::Failed => Verdict::because(false, "PodFailed"),
        _ => unless(&spec.containers, statuses, "unready", "ContainersNotReady"),
    }
}

fn initialized(
    spec: &PodSpec,
    phase: Phase,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> Verdict {
    if phase == Phase::Succeeded {
        return Verdict::because(true, "PodCompleted");
    }
    // What has started was initialised, whatever became of the init containers.
    let any_started = containers.iter().any(|status| {
        let ran = |s: &k8s_openapi::api::core::v1::ContainerState| {
            s.running.is_some() || s.terminated.is_some()
        };
        status.state.as_ref().is_some_and(ran) || status.last_state.as_ref().is_some_and(ran)
    });
    if any_started {
        return Verdict::of(true);
    }
    let containers = spec.init_containers.as_deref().unwrap_or_default();
    unless(containers, init, "incomplete", "ContainersNotInitialized")
}

fn gates_ready(spec: &PodSpec, gates: &[PodCondition]) -> Verdict {
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
        return Verdict::of(true);
    }
    Verdict {
        message: Some(messages.join(", ")),
        ..Verdict::because(false, "ReadinessGatesNotReady")
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodReadinessGate;

    use super::*;

    fn spec() -> PodSpec {
        let container = |name: &str| Container {
            name: name.to_owned(),
            ..Container::default()
        };
        PodSpec {
            containers: vec![container("a"), container("b")],
            ..PodSpec::default()
        }
    }

    fn statuses(ready: bool) -> Vec<ContainerStatus> {
        ["a", "b"]
            .map(|name| ContainerStatus {
                name: name.to_owned(),
                ready,
                ..ContainerStatus::default()
            })
            .to_vec()
    }

    fn ready_of(spec: &PodSpec, phase: Phase, statuses: &[ContainerStatus]) -> PodCondition {
        let pod = Pod::default();
        conditions(&pod, spec, &PodStatus::default(), phase, &[], statuses, &[])
            .into_iter()
            .find(|condition| condition.type_ == READY)
            .unwrap()
    }

    #[test]
    fn unready_containers_are_named_as_upstream_does() {
        let ready = ready_of(&spec(), Phase::Running, &statuses(false));
        assert_eq!(ready.status, "False");
        assert_eq!(ready.reason.as_deref(), Some("ContainersNotReady"));
        assert_eq!(
            ready.message.as_deref(),
            Some("containers with unready status: [a b]")
        );
        assert_eq!(
            ready_of(&spec(), Phase::Running, &statuses(true)).status,
            "True"
        );
    }

    #[test]
    fn a_done_pod_is_not_ready() {
        let ready = ready_of(&spec(), Phase::Succeeded, &statuses(true));
        assert_eq!(ready.reason.as_deref(), Some("PodCompleted"));
    }

    #[test]
    fn a_gate_that_nobody_opened_keeps_the_pod_unready() {
        let mut spec = spec();
        spec.readiness_gates = Some(vec![PodReadinessGate {
            condition_type: "example.org/gate".to_owned(),
        }]);
        let ready = ready_of(&spec, Phase::Running, &statuses(true));
        assert_eq!(ready.reason.as_deref(), Some("ReadinessGatesNotReady"));
    }
}
