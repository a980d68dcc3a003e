//! The phase of a pod, from the states of its containers.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec};
use kubelet_pod_spec::{phase::Phase, restart_rules};

use super::containers::RESTARTING_ALL;

/// A container's state, as far as it affects the phase.
enum PhaseState<'a> {
    /// It is running.
    Running(&'a ContainerStatus),
    /// It is waiting and never ran.
    Waiting,
    /// It has terminated before, and is not running.
    Stopped(Stopped),
    /// It has no status.
    Unknown,
}

/// The last termination of a container.
struct Stopped {
    exit_code: i32,
    /// It is not restarted.
    is_final: bool,
    /// Its current state is terminated, not waiting.
    is_terminated: bool,
}

fn phase_state<'a>(
    spec: &PodSpec,
    container: &Container,
    statuses: &'a [ContainerStatus],
) -> PhaseState<'a> {
    let status = statuses.iter().find(|s| s.name == container.name);
    let Some((status, state)) = status.and_then(|s| Some((s, s.state.as_ref()?))) else {
        return PhaseState::Unknown;
    };
    if state.running.is_some() {
        return PhaseState::Running(status);
    }
    let last = status.last_state.as_ref();
    let ended = match (&state.terminated, &state.waiting) {
        (Some(terminated), _) => terminated,
        (None, Some(_)) => match last.and_then(|last| last.terminated.as_ref()) {
            Some(terminated) => terminated,
            None => return PhaseState::Waiting,
        },
        (None, None) => return PhaseState::Unknown,
    };
    let restarting_all = ended.reason.as_deref() == Some(RESTARTING_ALL);
    let is_terminated = state.terminated.is_some();
    // A container that exited with 0 and is waiting runs again, as its spec changed. Unlike
    // upstream, a failed start does not make the pod fail.
    let runs_again = restarting_all || (!is_terminated && ended.exit_code == 0);
    PhaseState::Stopped(Stopped {
        exit_code: ended.exit_code,
        is_final: !runs_again && !restart_rules::restarts(spec, container, ended.exit_code),
        is_terminated,
    })
}

/// The inputs of the phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub(super) spec: &'a PodSpec,
    pub(super) init: &'a [ContainerStatus],
    pub(super) containers: &'a [ContainerStatus],
    /// Whether a regular container was created in the current sandbox.
    pub(super) initialized: bool,
    /// Whether no container is restarted, whatever the restart policies. Not set for static pods,
    /// whose phase follows from their containers alone.
    pub(super) ending: bool,
}

/// The number of containers by state.
#[derive(Default)]
struct Count {
    running: usize,
    waiting: usize,
    unknown: usize,
    stopped: usize,
    succeeded: usize,
    is_final: usize,
}

/// The phase that follows from the containers' states.
pub(super) fn phase(inputs: Inputs<'_>) -> Phase {
    let Inputs { spec, init, .. } = inputs;
    let mut count = Count::default();
    let (mut pending, mut failed) = (false, false);
    // Sidecars that have not started, and sidecars that never ran.
    let (mut pending_sidecars, mut waiting_sidecars) = (false, false);
    for container in spec.init_containers.iter().flatten() {
        let phase_state = phase_state(spec, container, init);
        if restart_rules::is_sidecar(container) {
            // Terminated sidecars do not count: they end after the regular containers.
            match phase_state {
                PhaseState::Running(status) => {
                    count.running += 1;
                    pending_sidecars |= status.started != Some(true);
                }
                PhaseState::Waiting | PhaseState::Unknown => {
                    waiting_sidecars = true;
                    pending_sidecars = true;
                }
                PhaseState::Stopped(_) => {}
            }
        } else {
            match phase_state {
                PhaseState::Stopped(ended) => failed |= ended.exit_code != 0 && ended.is_final,
                _ => pending = true,
            }
        }
    }
    if failed {
        return Phase::Failed;
    }
    for container in &spec.containers {
        match phase_state(spec, container, inputs.containers) {
            PhaseState::Running(_) => count.running += 1,
            PhaseState::Waiting => count.waiting += 1,
            PhaseState::Unknown => count.unknown += 1,
            PhaseState::Stopped(ended) => {
                count.stopped += 1;
                count.succeeded += usize::from(ended.is_terminated && ended.exit_code == 0);
                count.is_final += usize::from(ended.is_final);
            }
        }
    }
    // A restarting sidecar does not make the pod pending again. Once all regular containers have
    // ended for good, sidecars are not waited for at all; upstream waits for them.
    let is_over = count.is_final == spec.containers.len() && count.is_final > 0;
    let waits_for_sidecars = waiting_sidecars || (pending_sidecars && !inputs.initialized);
    if pending || count.waiting > 0 || count.unknown > 0 || (waits_for_sidecars && !is_over) {
        return Phase::Pending;
    }
    if count.running > 0 {
        return Phase::Running;
    }
    if count.stopped == 0 {
        return Phase::Pending;
    }
    if !inputs.ending && count.stopped != count.is_final {
        return Phase::Running;
    }
    if count.stopped == count.succeeded {
        Phase::Succeeded
    } else {
        Phase::Failed
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    };

    use super::*;

    fn named(name: &str) -> Container {
        Container {
            name: name.to_owned(),
            ..Container::default()
        }
    }

    fn status(name: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            name: name.to_owned(),
            state: Some(state),
            ..ContainerStatus::default()
        }
    }

    fn running() -> ContainerState {
        ContainerState {
            running: Some(ContainerStateRunning::default()),
            ..ContainerState::default()
        }
    }

    fn waiting() -> ContainerState {
        ContainerState {
            waiting: Some(ContainerStateWaiting::default()),
            ..ContainerState::default()
        }
    }

    fn ended(exit_code: i32) -> ContainerState {
        ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code,
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        }
    }

    fn phase_of(policy: &str, states: [ContainerState; 2]) -> Phase {
        let spec = PodSpec {
            restart_policy: Some(policy.to_owned()),
            containers: vec![named("a"), named("b")],
            ..PodSpec::default()
        };
        let [a, b] = states;
        of(&spec, &[], &[status("a", a), status("b", b)], false)
    }

    fn of(
        spec: &PodSpec,
        init: &[ContainerStatus],
        containers: &[ContainerStatus],
        ending: bool,
    ) -> Phase {
        phase(Inputs {
            spec,
            init,
            containers,
            initialized: false,
            ending,
        })
    }

    #[test]
    fn phases_follow_states_and_policy() {
        use Phase::{Failed, Pending, Running, Succeeded};
        for (policy, states, expected) in [
            ("Always", [waiting(), running()], Pending),
            ("Always", [running(), running()], Running),
            ("Always", [ended(0), ended(0)], Running),
            ("OnFailure", [ended(0), ended(1)], Running),
            ("OnFailure", [ended(0), ended(0)], Succeeded),
            ("Never", [ended(0), running()], Running),
            ("Never", [ended(0), ended(1)], Failed),
            ("Never", [ended(0), ended(0)], Succeeded),
        ] {
            assert_eq!(
                phase_of(policy, states.clone()),
                expected,
                "{policy} {states:?}"
            );
        }
    }

    #[test]
    fn a_phase_is_read_as_it_is_written() {
        use Phase::{Failed, Pending, Running, Succeeded};
        for phase in [Pending, Running, Succeeded, Failed] {
            assert_eq!(Phase::parse(Some(phase.as_str())), phase);
        }
        assert_eq!(Running.as_str(), "Running");
        assert_eq!([Some("Unknown"), None].map(Phase::parse), [Pending; 2]);
        assert_eq!(
            [Pending, Running, Succeeded, Failed].map(Phase::is_terminal),
            [false, false, true, true]
        );
    }

    #[test]
    fn a_container_of_which_nothing_is_known_keeps_a_pod_pending() {
        let spec = PodSpec {
            containers: vec![named("a"), named("b")],
            ..PodSpec::default()
        };
        let containers = [status("a", running())];
        assert_eq!(of(&spec, &[], &containers, false), Phase::Pending);
    }

    #[test]
    fn a_sidecar_that_never_ran_is_waited_for_while_a_container_runs() {
        let mut sidecar = named("s");
        sidecar.restart_policy = Some("Always".to_owned());
        let spec = PodSpec {
            restart_policy: Some("Never".to_owned()),
            init_containers: Some(vec![sidecar]),
            containers: vec![named("a"), named("b")],
            ..PodSpec::default()
        };
        let init = [status("s", waiting())];
        let of = |a, b| of(&spec, &init, &[status("a", a), status("b", b)], false);
        assert_eq!(of(ended(0), running()), Phase::Pending);
        assert_eq!(of(ended(0), ended(0)), Phase::Succeeded);
    }

    #[test]
    fn a_crash_looping_pod_runs() {
        let spec = PodSpec {
            containers: vec![named("a")],
            ..PodSpec::default()
        };
        let mut crashing = status("a", waiting());
        crashing.last_state = Some(ended(1));
        let statuses = [crashing];
        assert_eq!(of(&spec, &[], &statuses, false), Phase::Running);
        assert_eq!(of(&spec, &[], &statuses, true), Phase::Failed);
    }

    #[test]
    fn what_ended_well_and_waits_to_run_again_is_no_failure() {
        for (policy, exit_code, expected) in [
            ("OnFailure", 0, Phase::Running),
            ("Never", 0, Phase::Running),
            ("OnFailure", 1, Phase::Running),
            ("Never", 1, Phase::Failed),
        ] {
            let spec = PodSpec {
                restart_policy: Some(policy.to_owned()),
                containers: vec![named("a")],
                ..PodSpec::default()
            };
            let mut changed = status("a", waiting());
            changed.last_state = Some(ended(exit_code));
            assert_eq!(of(&spec, &[], &[changed], false), expected, "{policy}");
        }
    }

    #[test]
    fn a_sidecar_that_never_ran_is_not_waited_for_when_all_is_over() {
        let mut sidecar = named("s");
        sidecar.restart_policy = Some("Always".to_owned());
        let spec = PodSpec {
            restart_policy: Some("OnFailure".to_owned()),
            init_containers: Some(vec![sidecar]),
            containers: vec![named("a")],
            ..PodSpec::default()
        };
        let init = [status("s", waiting())];
        for (state, expected) in [
            (ended(0), Phase::Succeeded),
            (ended(1), Phase::Pending),
            (waiting(), Phase::Pending),
        ] {
            assert_eq!(of(&spec, &init, &[status("a", state)], false), expected);
        }
    }

    #[test]
    fn init_containers_keep_a_pod_pending_or_fail_it() {
        let mut spec = PodSpec {
            restart_policy: Some("Never".to_owned()),
            init_containers: Some(vec![named("i")]),
            containers: vec![named("a")],
            ..PodSpec::default()
        };
        let containers = [status("a", waiting())];
        let of = |spec: &PodSpec, state| of(spec, &[status("i", state)], &containers, false);
        assert_eq!(of(&spec, running()), Phase::Pending);
        assert_eq!(of(&spec, ended(1)), Phase::Failed);
        spec.restart_policy = None;
        assert_eq!(of(&spec, ended(1)), Phase::Pending);
    }

    #[test]
    fn sidecars_hold_a_pod_up_until_it_is_initialized_and_never_end_it() {
        let mut sidecar = named("s");
        sidecar.restart_policy = Some("Always".to_owned());
        let spec = PodSpec {
            restart_policy: Some("Never".to_owned()),
            init_containers: Some(vec![sidecar]),
            containers: vec![named("a")],
            ..PodSpec::default()
        };
        let of = |sidecar, started, main, initialized| {
            let mut sidecar = status("s", sidecar);
            sidecar.started = Some(started);
            phase(Inputs {
                spec: &spec,
                init: &[sidecar],
                containers: &[status("a", main)],
                initialized,
                ending: false,
            })
        };
        assert_eq!(of(running(), false, waiting(), false), Phase::Pending);
        assert_eq!(of(running(), false, running(), false), Phase::Pending);
        assert_eq!(of(running(), true, running(), false), Phase::Running);
        assert_eq!(of(running(), false, running(), true), Phase::Running);
        assert_eq!(of(waiting(), false, running(), true), Phase::Pending);
        assert_eq!(of(running(), true, ended(0), true), Phase::Running);
        assert_eq!(of(ended(1), false, ended(0), true), Phase::Succeeded);
        assert_eq!(of(ended(0), false, ended(1), true), Phase::Failed);
    }

    #[test]
    fn a_containers_own_policy_counts() {
        let mut again = named("a");
        again.restart_policy = Some("OnFailure".to_owned());
        let spec = PodSpec {
            restart_policy: Some("Never".to_owned()),
            containers: vec![again, named("b")],
            ..PodSpec::default()
        };
        let of = |a, b| of(&spec, &[], &[status("a", a), status("b", b)], false);
        assert_eq!(of(ended(1), ended(0)), Phase::Running);
        assert_eq!(of(ended(0), ended(1)), Phase::Failed);
    }
}
