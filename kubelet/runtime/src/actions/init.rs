//! What is to be done to the init containers of a pod: those that end run one by
//! one, and sidecars among them run on.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_pod_spec::restart_rules::{RestartPolicy, is_sidecar, restarts};
use kubelet_prober::results::{ProbeResult, ProbeResults, ProbeType};

use super::{ContainerToKill, KillReason, PodActions, is_changed, kill, unknown};

/// What one init container that was made needs.
enum Step {
    /// It is on its way.
    Wait,
    /// It has done its part: the next one's turn has come.
    Done,
    /// It is to be started (again).
    Start,
    /// It is to be stopped and started again.
    Restart {
        kill: ContainerToKill,
        /// Whether it has done its part nonetheless.
        done: bool,
    },
    /// It failed for good, and the pod with it.
    Fail,
}

/// Adds what the init containers need; whether all of them have done their part.
pub(super) fn actions(
    spec: &PodSpec,
    status: &PodStatus,
    sandbox_id: &str,
    probes: &ProbeResults,
    actions: &mut PodActions,
) -> bool {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    if init.is_empty() {
        return true;
    }
    // What ran in an earlier sandbox does not count: a new one is initialised anew.
    let active = |name: &str| {
        status
            .container(name)
            .filter(|c| c.sandbox_id.is_empty() || c.sandbox_id == sandbox_id)
    };
    // Where a container was made, the init containers had their turn, even those
    // that the runtime has forgotten.
    let mut initialized = spec.containers.iter().any(|c| active(&c.name).is_some());
    // Backwards: whatever comes before one that was made had its turn too.
    let mut had_its_turn = initialized;
    for (index, container) in init.iter().enumerate().rev() {
        let sidecar = is_sidecar(container);
        let Some(newest) = active(&container.name) else {
            if had_its_turn && sidecar {
                actions.start_init.push(index);
            }
            continue;
        };
        if had_its_turn && !sidecar {
            continue;
        }
        let step = if sidecar {
            sidecar_step(container, newest, probes)
        } else {
            step(spec, container, newest)
        };
        let (done, start) = match step {
            Step::Wait => (false, false),
            Step::Done => (true, false),
            Step::Start => (false, true),
            Step::Restart { kill, done } => {
                actions.kill.push(kill);
                (done, true)
            }
            Step::Fail => {
                actions.kill_pod = true;
                actions.start_init.clear();
                actions.start_ephemeral.clear();
                return false;
            }
        };
        if done {
            if index + 1 == init.len() {
                initialized = true;
            } else if !had_its_turn {
                actions.start_init.push(index + 1);
            }
        }
        if start {
            actions.start_init.push(index);
        }
        had_its_turn = true;
    }
    if !had_its_turn {
        actions.start_init.push(0);
    }
    actions.start_init.reverse();
    initialized
}

fn step(spec: &PodSpec, container: &Container, newest: &ContainerStatus) -> Step {
    match newest.state {
        ContainerState::Running => Step::Wait,
        // The runtime failed to start it.
        ContainerState::Created => Step::Start,
        ContainerState::Exited if newest.exit_code == 0 => Step::Done,
        ContainerState::Exited if restarts(spec, container, newest.exit_code) => Step::Start,
        ContainerState::Exited => Step::Fail,
        // There is no exit code for its rules.
        ContainerState::Unknown => {
            let policy = RestartPolicy::of_container(spec, container);
            match unknown(newest, "Init container") {
                Some(kill) if policy != RestartPolicy::Never => Step::Restart { kill, done: false },
                _ => Step::Fail,
            }
        }
    }
}

fn sidecar_step(container: &Container, newest: &ContainerStatus, probes: &ProbeResults) -> Step {
    match newest.state {
        ContainerState::Created | ContainerState::Exited => Step::Start,
        ContainerState::Unknown => match unknown(newest, "Init container") {
            Some(kill) => Step::Restart { kill, done: false },
            None => Step::Start,
        },
        ContainerState::Running => {
            let result = |probe| probes.get(&newest.id, probe);
            let startup = container
                .startup_probe
                .as_ref()
                .map(|_| result(ProbeType::Startup));
            let started = matches!(startup, None | Some(Some(ProbeResult::Success)));
            let restart = |message: &str, reason| {
                let message = format!("Init container {} {message}", container.name);
                Step::Restart {
                    kill: kill(newest, message, reason),
                    done: started,
                }
            };
            if startup == Some(Some(ProbeResult::Failure)) {
                restart("failed startup probe", KillReason::StartupProbe)
            } else if !started {
                // What has not started is not asked whether it lives.
                Step::Wait
            } else if is_changed(container, newest) {
                restart("definition changed", KillReason::Other)
            } else if result(ProbeType::Liveness) == Some(ProbeResult::Failure) {
                restart("failed liveness probe", KillReason::LivenessProbe)
            } else {
                Step::Done
            }
        }
    }
}
