use k8s_openapi::{
    api::core::v1::{
        ContainerRestartRule, ContainerState, ContainerStateRunning, ContainerStateTerminated,
        PodReadinessGate,
    },
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kubelet_cri_client::pod_status::{self, Reported};

use super::*;

/// Inputs of the conditions.
struct Given {
    spec: PodSpec,
    runtime: PodStatus,
    old: ApiStatus,
    phase: Phase,
    init: Vec<ContainerStatus>,
    containers: Vec<ContainerStatus>,
    restarting_all: bool,
}

impl Given {
    /// A pod with the containers `a` and `b`.
    fn new(phase: Phase, ready: bool) -> Self {
        Self {
            spec: PodSpec {
                containers: vec![named("a"), named("b")],
                ..PodSpec::default()
            },
            runtime: PodStatus::default(),
            old: ApiStatus::default(),
            phase,
            init: Vec::new(),
            containers: vec![status("a", ready), status("b", ready)],
            restarting_all: false,
        }
    }

    fn all(&self, others: &[PodCondition]) -> Vec<PodCondition> {
        conditions(self.inputs(&Pod::default()), others)
    }

    fn inputs<'a>(&'a self, pod: &'a Pod) -> Inputs<'a> {
        Inputs {
            pod,
            spec: &self.spec,
            status: &self.runtime,
            sandbox_made: false,
            old: &self.old,
            phase: self.phase,
            init: &self.init,
            containers: &self.containers,
            restarting_all: self.restarting_all,
        }
    }

    /// A condition's status, reason and message.
    fn told(&self, type_: &str) -> [String; 3] {
        told(&self.all(&[]), type_)
    }
}

fn named(name: &str) -> Container {
    Container {
        name: name.to_owned(),
        ..Container::default()
    }
}

fn sidecar(name: &str) -> Container {
    Container {
        restart_policy: Some("Always".to_owned()),
        ..named(name)
    }
}

fn status(name: &str, ready: bool) -> ContainerStatus {
    ContainerStatus {
        name: name.to_owned(),
        ready,
        ..ContainerStatus::default()
    }
}

fn condition(type_: &str, status: &str) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        last_transition_time: Some(long_ago()),
        ..PodCondition::default()
    }
}

fn long_ago() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

fn find<'a>(all: &'a [PodCondition], type_: &str) -> &'a PodCondition {
    all.iter().find(|found| found.type_ == type_).unwrap()
}

fn told(all: &[PodCondition], type_: &str) -> [String; 3] {
    let found = find(all, type_);
    let (reason, message) = (found.reason.clone(), found.message.clone());
    [Some(found.status.clone()), reason, message].map(Option::unwrap_or_default)
}

#[test]
fn unready_containers_are_named_as_upstream_does() {
    let unready = [
        "False",
        "ContainersNotReady",
        "containers with unready status: [a b]",
    ];
    let given = Given::new(Phase::Running, false);
    assert_eq!(given.told(READY), unready);
    assert_eq!(given.told(CONTAINERS_READY), unready);
    let given = Given::new(Phase::Running, true);
    assert_eq!(given.told(READY), ["True", "", ""]);
    assert_eq!(given.told(CONTAINERS_READY), ["True", "", ""]);
}

#[test]
fn containers_of_which_nothing_is_known_are_named_apart() {
    let mut given = Given::new(Phase::Running, false);
    given.containers.truncate(1);
    let message = "containers with unknown status: [b], containers with unready status: [a]";
    assert_eq!(given.told(READY), ["False", "ContainersNotReady", message]);
    given.containers[0].ready = true;
    assert_eq!(given.told(READY)[2], "containers with unknown status: [b]");
}

#[test]
fn a_sidecar_counts_among_the_ready_and_an_init_container_does_not() {
    let mut given = Given::new(Phase::Running, true);
    given.spec.init_containers = Some(vec![named("i"), sidecar("s")]);
    given.init = vec![status("i", false), status("s", false)];
    assert_eq!(given.told(READY)[2], "containers with unready status: [s]");
    given.init[1].ready = true;
    assert_eq!(given.told(READY)[0], "True");
}

#[test]
fn a_done_pod_is_not_ready() {
    for (phase, reason) in [
        (Phase::Succeeded, "PodCompleted"),
        (Phase::Failed, "PodFailed"),
    ] {
        let given = Given::new(phase, true);
        assert_eq!(given.told(READY), ["False", reason, ""]);
        assert_eq!(given.told(CONTAINERS_READY), ["False", reason, ""]);
    }
    // Completion needs the status of every container.
    let mut given = Given::new(Phase::Succeeded, true);
    given.containers.truncate(1);
    assert_eq!(given.told(READY)[1], "ContainersNotReady");
    assert_eq!(given.told(INITIALIZED), ["True", "PodCompleted", ""]);
}

#[test]
fn a_gate_that_nobody_opened_keeps_the_pod_unready() {
    const GATE: &str = "example.org/gate";
    let mut given = Given::new(Phase::Running, true);
    given.spec.readiness_gates = Some(vec![PodReadinessGate {
        condition_type: GATE.to_owned(),
    }]);
    let ready = |others: &[PodCondition]| told(&given.all(others), READY);
    let missing =
        "corresponding condition of pod readiness gate \"example.org/gate\" does not exist.";
    let another = [condition("example.org/another", "True")];
    for others in [&[][..], &another] {
        assert_eq!(ready(others), ["False", "ReadinessGatesNotReady", missing]);
    }
    let closed = "the status of pod readiness gate \"example.org/gate\" is not \"True\", but False";
    assert_eq!(
        ready(&[condition(GATE, "False")]),
        ["False", "ReadinessGatesNotReady", closed]
    );
    assert_eq!(ready(&[condition(GATE, "True")]), ["True", "", ""]);
    assert_eq!(given.told(CONTAINERS_READY)[0], "True");
}

#[test]
fn a_condition_holds_since_it_came_to_be_so() {
    let mut given = Given::new(Phase::Running, true);
    given.old.conditions = Some(vec![
        condition(READY, "False"),
        condition(CONTAINERS_READY, "True"),
    ]);
    let all = given.all(&[]);
    let since = |type_| find(&all, type_).last_transition_time.clone().unwrap();
    assert_eq!(since(CONTAINERS_READY), long_ago());
    assert_ne!(since(READY), long_ago());
    assert_ne!(since(INITIALIZED), long_ago());
}

#[test]
fn readiness_is_set_among_conditions_that_stay() {
    let others = [POD_SCHEDULED, READY, CONTAINERS_READY].map(|type_| condition(type_, "False"));
    let mut conditions = others.to_vec();
    let given = Given::new(Phase::Running, true);
    set_readiness(given.inputs(&Pod::default()), &mut conditions);
    let types = conditions.iter().map(|found| found.type_.as_str());
    assert_eq!(
        types.collect::<Vec<_>>(),
        [POD_SCHEDULED, READY, CONTAINERS_READY]
    );
    assert_eq!(conditions[0], others[0]);
    assert_eq!(told(&conditions, READY)[0], "True");
    assert_eq!(told(&conditions, CONTAINERS_READY)[0], "True");
}

#[test]
fn a_pod_is_initialized_when_its_init_containers_are_done_or_what_follows_has_begun() {
    let running = ContainerState {
        running: Some(ContainerStateRunning::default()),
        ..ContainerState::default()
    };
    let terminated = ContainerState {
        terminated: Some(ContainerStateTerminated::default()),
        ..ContainerState::default()
    };
    let mut given = Given::new(Phase::Pending, false);
    given.spec.init_containers = Some(vec![named("i"), sidecar("s")]);
    let waits = |list: &str| {
        let message = format!("containers with incomplete status: [{list}]");
        ["False", "ContainersNotInitialized", &message].map(str::to_owned)
    };
    // An init container is done when ready, a sidecar when started.
    given.init = vec![status("i", false), status("s", true)];
    assert_eq!(given.told(INITIALIZED), waits("i s"));
    given.init[0].ready = true;
    assert_eq!(given.told(INITIALIZED), waits("s"));
    given.init[1].started = Some(true);
    assert_eq!(given.told(INITIALIZED), ["True", "", ""]);

    given.init[0].ready = false;
    assert_eq!(given.told(INITIALIZED), waits("i"));
    for state in [running, terminated] {
        given.containers[1].state = Some(state);
        assert_eq!(given.told(INITIALIZED), ["True", "", ""]);
        given.containers[1].state = None;
    }
    for (type_, was, initialized) in [
        (INITIALIZED, "True", true),
        (INITIALIZED, "False", false),
        (READY, "True", false),
    ] {
        given.old.conditions = Some(vec![condition(type_, was)]);
        let status = if initialized { "True" } else { "False" };
        assert_eq!(given.told(INITIALIZED)[0], status, "{type_} {was}");
    }
    given.old.conditions = None;
    given.phase = Phase::Succeeded;
    assert_eq!(given.told(INITIALIZED), ["True", "PodCompleted", ""]);
    given.init.truncate(1);
    assert_eq!(given.told(INITIALIZED)[0], "False");
}

#[test]
fn a_restart_of_all_containers_is_told_until_what_ran_is_gone() {
    let mut given = Given::new(Phase::Running, true);
    let is_told = |given: &Given| {
        let all = given.all(&[]);
        all.iter()
            .any(|found| found.type_ == restart_all::ALL_CONTAINERS_RESTARTING)
    };
    assert!(!is_told(&given));
    given.spec.containers[0].restart_policy_rules = Some(vec![ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        exit_codes: None,
    }]);
    assert!(is_told(&given));
    let left = pod_status::ContainerStatus {
        id: "id".to_owned(),
        name: "a".to_owned(),
        sandbox_id: "sandbox".to_owned(),
        state: pod_status::ContainerState::Exited,
        created_at: 1,
        started_at: 1,
        finished_at: 2,
        exit_code: 42,
        image: String::new(),
        image_ref: String::new(),
        hash: None,
        restart_count: 0,
        reason: String::new(),
        message: String::new(),
        reported: Reported::default(),
    };
    let begun = [
        "True",
        "RestartAllContainersStarted",
        "container exited with restart policy rule",
    ];
    let no = ["False", "", ""];
    for (is_left, restarting, expected) in [
        (true, true, begun),
        (true, false, no),
        (false, true, no),
        (false, false, no),
    ] {
        given.runtime.containers = is_left.then(|| left.clone()).into_iter().collect();
        given.restarting_all = restarting;
        let told = given.told(restart_all::ALL_CONTAINERS_RESTARTING);
        assert_eq!(told, expected, "{is_left} {restarting}");
    }
    given.runtime.containers = vec![left];
    given.restarting_all = true;
    for (phase, reason) in [
        (Phase::Succeeded, "PodCompleted"),
        (Phase::Failed, "PodFailed"),
    ] {
        given.phase = phase;
        assert_eq!(
            given.told(restart_all::ALL_CONTAINERS_RESTARTING),
            ["False", reason, ""]
        );
    }
}
