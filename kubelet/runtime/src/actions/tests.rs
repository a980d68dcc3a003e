use k8s_openapi::api::core::v1::{
    ContainerRestartRule, ContainerRestartRuleOnExitCodes, EphemeralContainer, Probe,
};
use kubelet_cri_client::pod_status::{Reported, SandboxStatus};

use super::*;

fn compute(pod: &Pod, status: &PodStatus) -> PodActions {
    super::compute(pod, status, &ProbeResults::default())
}

fn container(name: &str) -> Container {
    Container {
        name: name.to_owned(),
        image: Some("image".to_owned()),
        ..Container::default()
    }
}

fn pod(policy: &str, init: &[&str], containers: &[&str]) -> Pod {
    Pod {
        spec: Some(PodSpec {
            restart_policy: Some(policy.to_owned()),
            init_containers: Some(init.iter().map(|name| container(name)).collect()),
            containers: containers.iter().map(|name| container(name)).collect(),
            ..PodSpec::default()
        }),
        ..Pod::default()
    }
}

fn sandbox(ready: bool) -> SandboxStatus {
    SandboxStatus {
        id: "sandbox".to_owned(),
        attempt: 2,
        ready,
        created_at: 1,
        host_network: false,
        ips: vec!["10.0.0.1".to_owned()],
    }
}

fn ran(name: &str, state: ContainerState, exit_code: i32) -> ContainerStatus {
    ContainerStatus {
        id: format!("id-{name}"),
        name: name.to_owned(),
        sandbox_id: "sandbox".to_owned(),
        state,
        created_at: 1,
        started_at: 1,
        finished_at: 0,
        exit_code,
        image: String::new(),
        image_ref: String::new(),
        hash: Some(container_hash(&container(name))),
        restart_count: 0,
        reason: String::new(),
        message: String::new(),
        reported: Reported::default(),
    }
}

fn has(containers: Vec<ContainerStatus>) -> PodStatus {
    PodStatus {
        sandboxes: vec![sandbox(true)],
        containers,
    }
}

const RUNNING: ContainerState = ContainerState::Running;
const EXITED: ContainerState = ContainerState::Exited;

#[test]
fn a_new_pod_gets_a_sandbox_and_starts_with_its_first_init_container() {
    let actions = compute(&pod("Always", &["i"], &["a"]), &PodStatus::default());
    assert_eq!(actions.create_sandbox, Some(0));
    assert_eq!((actions.start_init, actions.start), (vec![0], vec![]));
    let actions = compute(&pod("Always", &[], &["a", "b"]), &PodStatus::default());
    assert_eq!(actions.start, [0, 1]);
}

#[test]
fn a_pod_as_it_should_be_is_left_alone() {
    let status = has(vec![ran("a", RUNNING, 0)]);
    assert!(compute(&pod("Always", &[], &["a"]), &status).is_empty());
}

#[test]
fn containers_restart_by_policy() {
    for (policy, exit_code, restarts) in [
        ("Always", 0, true),
        ("Always", 1, true),
        ("OnFailure", 0, false),
        ("OnFailure", 1, true),
        ("Never", 0, false),
        ("Never", 1, false),
    ] {
        let status = has(vec![ran("a", EXITED, exit_code), ran("b", RUNNING, 0)]);
        let actions = compute(&pod(policy, &[], &["a", "b"]), &status);
        assert_eq!(actions.start.contains(&0), restarts, "{policy} {exit_code}");
        assert!(!actions.kill_pod);
    }
}

#[test]
fn a_pod_of_which_nothing_runs_on_is_killed() {
    let status = has(vec![ran("a", EXITED, 0)]);
    assert!(compute(&pod("Never", &[], &["a"]), &status).kill_pod);
}

#[test]
fn a_dead_sandbox_is_replaced_unless_nothing_would_run_in_it() {
    let dead = |containers| PodStatus {
        sandboxes: vec![sandbox(false)],
        containers,
    };
    let actions = compute(
        &pod("Always", &[], &["a"]),
        &dead(vec![ran("a", EXITED, 0)]),
    );
    assert_eq!(actions.create_sandbox, Some(3));
    assert!(actions.kill_pod);
    for policy in ["Never", "OnFailure"] {
        let status = dead(vec![ran("a", EXITED, 0)]);
        let actions = compute(&pod(policy, &[], &["a"]), &status);
        assert_eq!(actions.create_sandbox, None, "{policy}");
    }
}

#[test]
fn a_pod_whose_sandbox_died_before_anything_was_started_still_runs() {
    let mut status = has(vec![ran("a", ContainerState::Created, 0)]);
    status.sandboxes = vec![sandbox(false)];
    let actions = compute(&pod("Never", &[], &["a"]), &status);
    assert_eq!(actions.create_sandbox, Some(3));
    assert_eq!(actions.start, [0]);
    status.containers.push(ran("b", EXITED, 1));
    let actions = compute(&pod("Never", &[], &["a", "b"]), &status);
    assert_eq!((actions.create_sandbox, actions.kill_pod), (None, true));
}

#[test]
fn another_network_or_no_address_needs_another_sandbox() {
    let mut host = pod("Always", &[], &["a"]);
    host.spec.as_mut().unwrap().host_network = Some(true);
    let status = has(vec![ran("a", RUNNING, 0)]);
    assert_eq!(compute(&host, &status).create_sandbox, Some(3));
    let mut status = status;
    status.sandboxes[0].ips.clear();
    let actions = compute(&pod("Always", &[], &["a"]), &status);
    assert_eq!(actions.create_sandbox, Some(3));
}

#[test]
fn only_the_newest_sandbox_serves_and_only_alone() {
    let both = |newest, older| {
        let mut status = has(vec![ran("a", RUNNING, 0)]);
        status.sandboxes = vec![sandbox(newest), sandbox(older)];
        compute(&pod("Always", &[], &["a"]), &status).create_sandbox
    };
    assert_eq!(both(true, false), None);
    assert_eq!(both(true, true), Some(3));
    assert_eq!(both(false, true), Some(3));
}

#[test]
fn what_may_run_still_is_killed_before_it_is_started_again() {
    let unknown = |name: &str| ran(name, ContainerState::Unknown, 0);
    let killed = |actions: &PodActions| -> Vec<String> {
        actions.kill.iter().map(|kill| kill.id.clone()).collect()
    };
    let actions = compute(&pod("Always", &[], &["a"]), &has(vec![unknown("a")]));
    assert_eq!(
        (killed(&actions), starts(&actions)),
        (vec!["id-a".to_owned()], (vec![], vec![0]))
    );
    let ended = compute(&pod("Always", &[], &["a"]), &has(vec![ran("a", EXITED, 0)]));
    assert_eq!(
        (killed(&ended), starts(&ended)),
        (vec![], (vec![], vec![0]))
    );

    let init = |policy: &str| compute(&pod(policy, &["i"], &["a"]), &has(vec![unknown("i")]));
    let actions = init("Always");
    assert_eq!(
        (killed(&actions), starts(&actions)),
        (vec!["id-i".to_owned()], (vec![0], vec![]))
    );
    // The exit code is unknown, and the container must not run twice.
    let actions = init("Never");
    assert_eq!(
        (actions.kill_pod, starts(&actions)),
        (true, (vec![], vec![]))
    );
}

#[test]
fn init_containers_run_one_by_one() {
    let pod = pod("Always", &["i", "j"], &["a"]);
    let step = |containers| {
        let actions = compute(&pod, &has(containers));
        (actions.start_init, actions.start)
    };
    assert_eq!(step(vec![]), (vec![0], vec![]));
    assert_eq!(step(vec![ran("i", RUNNING, 0)]), (vec![], vec![]));
    assert_eq!(step(vec![ran("i", EXITED, 1)]), (vec![0], vec![]));
    assert_eq!(step(vec![ran("i", EXITED, 0)]), (vec![1], vec![]));
    let both = vec![ran("j", EXITED, 0), ran("i", EXITED, 0)];
    assert_eq!(step(both), (vec![], vec![0]));
    // Init containers that were garbage-collected do not run again in a running pod.
    assert_eq!(step(vec![ran("a", RUNNING, 0)]), (vec![], vec![]));
}

#[test]
fn a_failed_init_container_fails_a_pod_that_is_not_restarted() {
    let actions = compute(
        &pod("Never", &["i"], &["a"]),
        &has(vec![ran("i", EXITED, 1)]),
    );
    assert!(actions.kill_pod && actions.start.is_empty());
}

#[test]
fn a_changed_container_is_recreated_even_when_never_restarted() {
    let mut changed = ran("a", RUNNING, 0);
    changed.hash = Some(1);
    let actions = compute(&pod("Never", &[], &["a"]), &has(vec![changed]));
    assert_eq!(actions.kill.len(), 1);
    assert_eq!(actions.start, [0]);
}

/// A pod with a sidecar `s`, an init container `i` after it, and a container `a`.
fn sidecar_pod(policy: &str, startup_probe: bool) -> Pod {
    let mut pod = pod(policy, &["s", "i"], &["a"]);
    let spec = pod.spec.as_mut().unwrap();
    let sidecar = &mut spec.init_containers.as_mut().unwrap()[0];
    sidecar.restart_policy = Some("Always".to_owned());
    sidecar.startup_probe = startup_probe.then(Probe::default);
    pod
}

fn starts(actions: &PodActions) -> (Vec<usize>, Vec<usize>) {
    (actions.start_init.clone(), actions.start.clone())
}

#[test]
fn what_comes_after_a_sidecar_starts_once_that_has_started() {
    let running = has(vec![ran("s", RUNNING, 0)]);
    let actions = compute(&sidecar_pod("Always", false), &running);
    assert_eq!(starts(&actions), (vec![1], vec![]));

    let pod = sidecar_pod("Always", true);
    let probes = ProbeResults::default();
    assert!(super::compute(&pod, &running, &probes).is_empty());
    probes.set("id-s", ProbeType::Startup, ProbeResult::Unknown);
    assert!(super::compute(&pod, &running, &probes).is_empty());
    probes.set("id-s", ProbeType::Startup, ProbeResult::Success);
    let actions = super::compute(&pod, &running, &probes);
    assert_eq!(starts(&actions), (vec![1], vec![]));
    probes.set("id-s", ProbeType::Startup, ProbeResult::Failure);
    let actions = super::compute(&pod, &running, &probes);
    assert_eq!(starts(&actions), (vec![0], vec![]));
    assert_eq!(actions.kill[0].reason, KillReason::StartupProbe);
}

#[test]
fn a_sidecar_that_is_last_lets_the_containers_start() {
    let mut pod = pod("Always", &["s"], &["a"]);
    let init = pod.spec.as_mut().unwrap().init_containers.as_mut().unwrap();
    init[0].restart_policy = Some("Always".to_owned());
    let actions = compute(&pod, &has(vec![ran("s", RUNNING, 0)]));
    assert_eq!(starts(&actions), (vec![], vec![0]));
}

#[test]
fn sidecars_are_restarted_for_as_long_as_containers_run() {
    for policy in ["Always", "OnFailure", "Never"] {
        let pod = sidecar_pod(policy, false);
        let status = |sidecar, container| {
            has(vec![
                ran("a", container, 0),
                ran("i", EXITED, 0),
                ran("s", sidecar, 0),
            ])
        };
        let actions = compute(&pod, &status(EXITED, RUNNING));
        assert_eq!(starts(&actions), (vec![0], vec![]), "{policy}");
        assert!(compute(&pod, &status(RUNNING, RUNNING)).is_empty());
        if policy != "Always" {
            for sidecar in [EXITED, RUNNING] {
                let actions = compute(&pod, &status(sidecar, EXITED));
                assert!(actions.kill_pod, "{policy}");
                assert_eq!(starts(&actions), (vec![], vec![]), "{policy}");
            }
        }
    }
    // A sidecar that the runtime no longer has is created again, without the init containers.
    let actions = compute(
        &sidecar_pod("Always", false),
        &has(vec![ran("a", RUNNING, 0)]),
    );
    assert_eq!(starts(&actions), (vec![0], vec![]));
    // A sidecar also restarts while an init container is running, which blocks the other
    // containers.
    let status = has(vec![ran("i", RUNNING, 0), ran("s", EXITED, 1)]);
    let actions = compute(&sidecar_pod("Always", false), &status);
    assert_eq!(starts(&actions), (vec![0], vec![]));
}

#[test]
fn failed_probes_end_a_container_which_is_restarted_by_policy() {
    for (policy, probe, message, start) in [
        (
            "Always",
            ProbeType::Liveness,
            "Container a failed liveness probe, will be restarted",
            vec![0],
        ),
        (
            "OnFailure",
            ProbeType::Startup,
            "Container a failed startup probe, will be restarted",
            vec![0],
        ),
        (
            "Never",
            ProbeType::Liveness,
            "Container a failed liveness probe",
            vec![],
        ),
    ] {
        let probes = ProbeResults::default();
        probes.set("id-a", probe, ProbeResult::Failure);
        let status = has(vec![ran("a", RUNNING, 0), ran("b", RUNNING, 0)]);
        let actions = super::compute(&pod(policy, &[], &["a", "b"]), &status, &probes);
        assert_eq!(actions.kill[0].message, message);
        assert_eq!(actions.start, start);
        assert!(!actions.kill_pod);
    }
    let probes = ProbeResults::default();
    probes.set("id-a", ProbeType::Readiness, ProbeResult::Failure);
    let status = has(vec![ran("a", RUNNING, 0)]);
    assert!(super::compute(&pod("Always", &[], &["a"]), &status, &probes).is_empty());
}

#[test]
fn a_sidecar_that_fails_its_liveness_probe_is_restarted() {
    let probes = ProbeResults::default();
    probes.set("id-s", ProbeType::Liveness, ProbeResult::Failure);
    let status = has(vec![ran("a", RUNNING, 0), ran("s", RUNNING, 0)]);
    let actions = super::compute(&sidecar_pod("Never", false), &status, &probes);
    assert_eq!(starts(&actions), (vec![0], vec![]));
    assert_eq!(
        actions.kill[0].message,
        "Init container s failed liveness probe"
    );
}

#[test]
fn ephemeral_containers_are_started_once() {
    let mut pod = pod("Always", &["i"], &["a"]);
    pod.spec.as_mut().unwrap().ephemeral_containers = Some(vec![EphemeralContainer {
        name: "e".to_owned(),
        ..EphemeralContainer::default()
    }]);
    // Also during the initialisation of the pod.
    let actions = compute(&pod, &has(vec![ran("i", RUNNING, 0)]));
    assert_eq!(actions.start_ephemeral, [0]);
    for state in [RUNNING, EXITED] {
        let status = has(vec![ran("e", state, 1), ran("a", RUNNING, 0)]);
        assert!(compute(&pod, &status).is_empty());
    }
    // A new pod needs a sandbox first.
    let actions = compute(&pod, &PodStatus::default());
    assert!(actions.start_ephemeral.is_empty());
}

#[test]
fn there_is_something_to_do_if_anything_is() {
    assert!(PodActions::default().is_empty());
    let kill = ContainerToReset {
        id: String::new(),
        kill: false,
    };
    let changes: [fn(&mut PodActions); 5] = [
        |actions| actions.kill_pod = true,
        |actions| actions.create_sandbox = Some(0),
        |actions| actions.start_ephemeral = vec![0],
        |actions| actions.start_init = vec![0],
        |actions| actions.start = vec![0],
    ];
    let one = changes.map(|change| {
        let mut actions = PodActions::default();
        change(&mut actions);
        actions
    });
    let reset = PodActions {
        reset: vec![kill],
        ..PodActions::default()
    };
    assert!(!reset.is_empty());
    assert!(one.iter().all(|actions| !actions.is_empty()), "{one:?}");
}

#[test]
fn containers_have_a_policy_of_their_own() {
    let mut pod = pod("Never", &["i"], &["a", "b"]);
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].restart_policy = Some("Always".to_owned());
    let init = spec.init_containers.as_mut().unwrap();
    init[0].restart_policy = Some("OnFailure".to_owned());
    let actions = compute(&pod, &has(vec![ran("i", EXITED, 1)]));
    assert_eq!(starts(&actions), (vec![0], vec![]));
    let ended = has(vec![
        ran("b", EXITED, 1),
        ran("a", EXITED, 0),
        ran("i", EXITED, 0),
    ]);
    assert_eq!(starts(&compute(&pod, &ended)), (vec![], vec![0]));
}

#[test]
fn a_rule_has_everything_removed_and_what_asked_for_it_last() {
    let mut pod = pod("Never", &["i"], &["a", "b"]);
    let spec = pod.spec.as_mut().unwrap();
    spec.containers[0].restart_policy = Some("Never".to_owned());
    spec.containers[0].restart_policy_rules = Some(vec![ContainerRestartRule {
        action: "RestartAllContainers".to_owned(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: "In".to_owned(),
            values: Some(vec![42]),
        }),
    }]);
    let actions = compute(
        &pod,
        &has(vec![
            ran("b", RUNNING, 0),
            ran("a", EXITED, 42),
            ran("i", EXITED, 0),
        ]),
    );
    let reset: Vec<_> = actions
        .reset
        .iter()
        .map(|c| (c.id.as_str(), c.kill))
        .collect();
    assert_eq!(reset, [("id-b", true), ("id-i", false), ("id-a", false)]);
    assert_eq!(starts(&actions), (vec![], vec![]));
    // The restart of the pod continues until the container that caused it is removed.
    let actions = compute(&pod, &has(vec![ran("a", EXITED, 42)]));
    assert_eq!(actions.reset.len(), 1);
    assert_eq!(starts(&compute(&pod, &has(vec![]))), (vec![0], vec![]));
    // Other exit codes do not cause a restart.
    let status = has(vec![ran("b", RUNNING, 0), ran("a", EXITED, 1)]);
    assert!(compute(&pod, &status).is_empty());
}
