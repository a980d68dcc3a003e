//! Phase of a pod, from the states of its containers.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodSpec};

use crate::runtime::restart_rules::{is_sidecar, restarts};

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not everything was started yet.
    Pending,
    /// Everything was started, and something runs or will again.
    Running,
    /// Everything ended well and is not started again.
    Succeeded,
    /// Everything ended, something not well, and is not started again.
    Failed,
}

impl Phase {
    /// The phase as the API writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// Whether the pod is done for good.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// The phase that the API has; `Pending` when it has none.
    pub fn parse(phase: Option<&str>) -> Self {
        match phase {
            Some("Running") => Self::Running,
            Some("Succeeded") => Self::Succeeded,
            Some("Failed") => Self::Failed,
            _ => Self::Pending,
        }
    }
}

/// How one container counts.
enum Standing {
    /// Runs.
    Running,
    /// Never ran.
    Waiting,
    /// Ran, with this exit code the last time.
    Stopped(i32),
    /// Nothing is known of it.
    Unknown,
}

fn standing(container: &Container, statuses: &[ContainerStatus]) -> Standing {
    let status = statuses.iter().find(|s| s.name == container.name);
    let Some((status, state)) = status.and_then(|s| Some((s, s.state.as_ref()?))) else {
        return Standing::Unknown;
    };
    if state.running.is_some() {
        Standing::Running
    } else if let Some(terminated) = &state.terminated {
        Standing::Stopped(terminated.exit_code)
    } else if state.waiting.is_some() {
        let last = status.last_state.as_ref();
        match last.and_then(|last| last.terminated.as_ref()) {
            Some(terminated) => Standing::Stopped(terminated.exit_code),
            None => Standing::Waiting,
        }
    } else {
        Standing::Unknown
    }
}

/// The phase. `ending` says that no container will be started again, whatever
/// the restart policy.
pub fn phase(
    spec: &PodSpec,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
    ending: bool,
) -> Phase {
    let mut initializing = false;
    let (mut running, mut waiting, mut unknown) = (0, 0, 0);
    for container in spec.init_containers.iter().flatten() {
        match standing(container, init) {
            Standing::Running if is_sidecar(container) => running += 1,
            Standing::Waiting if is_sidecar(container) => waiting += 1,
            Standing::Unknown if is_sidecar(container) => unknown += 1,
            Standing::Stopped(_) if is_sidecar(container) => {}
            Standing::Stopped(0) => {}
            Standing::Stopped(exit_code) if !restarts(spec, container, exit_code) => {
                return Phase::Failed;
            }
            Standing::Stopped(_) => {}
            Standing::Running | Standing::Waiting | Standing::Unknown => initializing = true,
        }
    }
    let (mut stopped, mut succeeded, mut final_) = (0, 0, 0);
    for container in &spec.containers {
        match standing(container, containers) {
            Standing::Running => running += 1,
            Standing::Waiting => waiting += 1,
            Standing::Unknown => unknown += 1,
            Standing::Stopped(exit_code) => {
                stopped += 1;
                succeeded += usize::from(exit_code == 0);
                final_ += usize::from(!restarts(spec, container, exit_code));
            }
        }
    }
    let done = |stopped, succeeded| {
        if stopped == succeeded {
            Phase::Succeeded
        } else {
            Phase::Failed
        }
    };
    if initializing || waiting > 0 {
        Phase::Pending
    } else if running > 0 && unknown == 0 {
        Phase::Running
    } else if running == 0 && stopped > 0 && unknown == 0 {
        if ending || stopped == final_ {
            done(stopped, succeeded)
        } else {
            Phase::Running
        }
    } else {
        Phase::Pending
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
        phase(&spec, &[], &[status("a", a), status("b", b)], false)
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
    fn a_crash_looping_pod_runs() {
        let spec = PodSpec {
            containers: vec![named("a")],
            ..PodSpec::default()
        };
        let mut crashing = status("a", waiting());
        crashing.last_state = Some(ended(1));
        let statuses = [crashing];
        assert_eq!(phase(&spec, &[], &statuses, false), Phase::Running);
        assert_eq!(phase(&spec, &[], &statuses, true), Phase::Failed);
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
        let of = |spec: &PodSpec, state| phase(spec, &[status("i", state)], &containers, false);
        assert_eq!(of(&spec, running()), Phase::Pending);
        assert_eq!(of(&spec, ended(1)), Phase::Failed);
        spec.restart_policy = None;
        assert_eq!(of(&spec, ended(1)), Phase::Pending);
    }
}
