//! The actions for the init containers of a pod: ordinary ones run to completion one by one,
//! sidecars keep running.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_pod_spec::restart_rules::{RestartPolicy, is_sidecar, restarts};
use kubelet_prober::results::{ProbeResult, ProbeResults, ProbeType};

use super::{ContainerToKill, KillReason, PodActions, is_changed, kill, unknown};

/// The action for an init container that exists in the runtime.
enum Step {
    /// It is still running.
    Wait,
    /// It is complete; the next one may start.
    Done,
    /// It has to be started, possibly again.
    Start,
    /// It has to be stopped and started again.
    Restart {
        kill: ContainerToKill,
        /// Whether the next one may start nonetheless.
        done: bool,
    },
    /// It failed permanently, and so did the pod.
    Fail,
}

/// Adds the actions for the init containers. Returns whether the pod is initialised.
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
    // Runs in earlier sandboxes do not count: the pod is initialised again in each sandbox.
    let active = |name: &str| {
        status
            .container(name)
            .filter(|c| c.sandbox_id.is_empty() || c.sandbox_id == sandbox_id)
    };
    // If a regular container exists, all init containers have had their turn, even those that the
    // runtime no longer has.
    let mut initialized = spec.containers.iter().any(|c| active(&c.name).is_some());
    // In reverse order: all init containers before an existing one have had their turn, too.
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
        // Without an exit code, the restart rules do not apply.
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
                // Liveness is not checked before startup.
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
