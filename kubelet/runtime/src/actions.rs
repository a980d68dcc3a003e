//! The actions that a pod needs, computed from its spec, its state in the runtime and its probe
//! results. Nothing here has side effects.

mod init;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_pod_spec::restart_rules::{RestartPolicy, restarts, restarts_all};
use kubelet_prober::results::{ProbeResult, ProbeResults, ProbeType};

use super::hash::container_hash;

/// Whether the pod needs a new sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxNeed {
    /// The newest sandbox is usable.
    Keep {
        /// ID of the sandbox.
        id: String,
    },
    /// A new sandbox is needed.
    Create {
        /// The attempt of the new sandbox: 0 for the first one, else one more than that of the
        /// newest.
        attempt: u32,
    },
}

/// The cause of a kill, as far as the grace period depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its liveness probe failed.
    LivenessProbe,
    /// Its startup probe failed.
    StartupProbe,
    /// Any other cause.
    Other,
}

/// A running container that must be stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToKill {
    /// ID in the runtime.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// Message of the event.
    pub message: String,
    /// The cause, for the grace period.
    pub reason: KillReason,
}

/// A container that is removed from the runtime for a restart of the whole pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToReset {
    /// ID in the runtime.
    pub id: String,
    /// Whether it has to be stopped first.
    pub kill: bool,
}

/// The actions of one sync, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Stop all sandboxes and containers.
    pub kill_pod: bool,
    /// Containers to stop.
    pub kill: Vec<ContainerToKill>,
    /// Containers to remove, because an exited container restarts the whole pod
    /// (`RestartAllContainers`); there are no other actions then. The containers that caused the
    /// restart come last: while others are left, they show that the restart is not complete.
    pub reset: Vec<ContainerToReset>,
    /// Attempt of the sandbox to create.
    pub create_sandbox: Option<u32>,
    /// ID of the existing, usable sandbox.
    pub sandbox_id: Option<String>,
    /// Indexes of the ephemeral containers to start.
    pub start_ephemeral: Vec<usize>,
    /// Indexes of the init containers to start.
    pub start_init: Vec<usize>,
    /// Indexes of the containers to start.
    pub start: Vec<usize>,
}

impl PodActions {
    /// Whether there are no actions.
    pub fn is_empty(&self) -> bool {
        !self.kill_pod
            && self.create_sandbox.is_none()
            && self.kill.is_empty()
            && self.reset.is_empty()
            && self.start_ephemeral.is_empty()
            && self.start_init.is_empty()
            && self.start.is_empty()
    }
}

/// Whether the newest sandbox is usable: it is the only ready one, uses the network that the spec
/// asks for, and has an IP address unless that is the host network.
pub fn sandbox_need(spec: &PodSpec, status: &PodStatus) -> SandboxNeed {
    let Some(newest) = status.sandboxes.first() else {
        return SandboxNeed::Create { attempt: 0 };
    };
    let host_network = spec.host_network.unwrap_or_default();
    let only_ready = newest.ready && status.sandboxes.iter().filter(|s| s.ready).count() == 1;
    let has_network =
        newest.host_network == host_network && (host_network || !newest.ips.is_empty());
    if only_ready && has_network {
        return SandboxNeed::Keep {
            id: newest.id.clone(),
        };
    }
    SandboxNeed::Create {
        attempt: newest.attempt + 1,
    }
}

/// Whether a container has to be started, given its present state.
pub fn should_be_restarted(spec: &PodSpec, container: &Container, status: &PodStatus) -> bool {
    match status.container(&container.name) {
        None => true,
        Some(status) => match status.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => restarts(spec, container, status.exit_code),
        },
    }
}

/// Whether a restart of the whole pod is in progress: a container whose exit caused it is not
/// removed yet.
pub fn is_restarting_all(spec: &PodSpec, status: &PodStatus) -> bool {
    containers(spec).any(|container| {
        status
            .container(&container.name)
            .is_some_and(|newest| asks_for_all(container, newest))
    })
}

/// Computes the actions that bring the pod to the state that its spec asks for.
pub fn compute(pod: &Pod, status: &PodStatus, probes: &ProbeResults) -> PodActions {
    let Some(spec) = &pod.spec else {
        return PodActions::default();
    };
    if is_restarting_all(spec, status) {
        return PodActions {
            reset: containers_to_reset(spec, status),
            ..PodActions::default()
        };
    }
    let sandbox_id = match sandbox_need(spec, status) {
        SandboxNeed::Create { attempt } => return recreate(spec, status, attempt),
        SandboxNeed::Keep { id } => id,
    };
    let mut actions = PodActions {
        sandbox_id: Some(sandbox_id.clone()),
        // Ephemeral containers start without waiting for init containers, and run once.
        start_ephemeral: (0..)
            .zip(spec.ephemeral_containers.iter().flatten())
            .filter(|(_, container)| status.container(&container.name).is_none())
            .map(|(index, _)| index)
            .collect(),
        ..PodActions::default()
    };
    if !init::actions(spec, status, &sandbox_id, probes, &mut actions) {
        return actions;
    }
    let mut keep = 0;
    for (index, container) in spec.containers.iter().enumerate() {
        let newest = status.container(&container.name);
        let Some(running) = newest.filter(|c| c.state == ContainerState::Running) else {
            if should_be_restarted(spec, container, status) {
                actions.start.push(index);
                // It may still be running, and must not run twice.
                actions
                    .kill
                    .extend(newest.and_then(|c| unknown(c, "Container")));
            }
            continue;
        };
        let (message, reason, restart) = if is_changed(container, running) {
            // The restart policy does not matter: this is a different container.
            ("definition changed", KillReason::Other, true)
        } else if let Some((message, reason)) = failed_probe(running, probes) {
            let restart = RestartPolicy::of_container(spec, container) != RestartPolicy::Never;
            (message, reason, restart)
        } else {
            keep += 1;
            continue;
        };
        let mut message = format!("Container {} {message}", container.name);
        if restart {
            message.push_str(", will be restarted");
            actions.start.push(index);
        }
        actions.kill.push(kill(running, message, reason));
    }
    if keep == 0 && actions.start.is_empty() {
        actions.kill_pod = true;
        // Sidecars do not keep a pod alive.
        actions.start_init.clear();
        actions.start_ephemeral.clear();
    }
    actions
}

fn recreate(spec: &PodSpec, status: &PodStatus, attempt: u32) -> PodActions {
    let mut actions = PodActions {
        kill_pod: true,
        ..PodActions::default()
    };
    // A pod that ran and is not restarted needs no new sandbox. If none of its containers was
    // started, it still has to run, or it would wait forever.
    let ran = |c: &ContainerStatus| c.state != ContainerState::Created;
    if RestartPolicy::of(spec) == RestartPolicy::Never
        && attempt != 0
        && status.containers.iter().any(ran)
    {
        return actions;
    }
    let is_done = |container: &Container| {
        RestartPolicy::of_container(spec, container) == RestartPolicy::OnFailure
            && status
                .container(&container.name)
                .is_some_and(ContainerStatus::succeeded)
    };
    let start: Vec<usize> = (0..)
        .zip(&spec.containers)
        .filter(|(_, container)| !is_done(container))
        .map(|(index, _)| index)
        .collect();
    if start.is_empty() {
        return actions;
    }
    actions.create_sandbox = Some(attempt);
    if spec.init_containers.as_ref().is_some_and(|c| !c.is_empty()) {
        actions.start_init = vec![0];
    } else {
        actions.start = start;
    }
    actions
}

fn containers_to_reset(spec: &PodSpec, status: &PodStatus) -> Vec<ContainerToReset> {
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let mut all = Vec::new();
    for asking in [false, true] {
        for container in spec.containers.iter().chain(init) {
            let runs = status
                .containers
                .iter()
                .filter(|run| run.name == container.name && asks_for_all(container, run) == asking);
            all.extend(runs.map(|run| ContainerToReset {
                id: run.id.clone(),
                kill: run.state != ContainerState::Exited,
            }));
        }
    }
    all
}

fn asks_for_all(container: &Container, run: &ContainerStatus) -> bool {
    run.state == ContainerState::Exited && restarts_all(container, run.exit_code)
}

fn containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// Whether a container was created from a different definition.
fn is_changed(container: &Container, running: &ContainerStatus) -> bool {
    running
        .hash
        .is_some_and(|hash| hash != container_hash(container))
}

/// The probe failure that requires stopping a running container.
fn failed_probe(
    running: &ContainerStatus,
    probes: &ProbeResults,
) -> Option<(&'static str, KillReason)> {
    let failed = |probe| probes.get(&running.id, probe) == Some(ProbeResult::Failure);
    if failed(ProbeType::Liveness) {
        Some(("failed liveness probe", KillReason::LivenessProbe))
    } else if failed(ProbeType::Startup) {
        Some(("failed startup probe", KillReason::StartupProbe))
    } else {
        None
    }
}

fn kill(container: &ContainerStatus, message: String, reason: KillReason) -> ContainerToKill {
    ContainerToKill {
        id: container.id.clone(),
        name: container.name.clone(),
        message,
        reason,
    }
}

/// Kills a container in the unknown state, which may be running.
fn unknown(container: &ContainerStatus, kind: &str) -> Option<ContainerToKill> {
    (container.state == ContainerState::Unknown).then(|| {
        let message = format!("{kind} is in \"unknown\" state, try killing it before restart");
        kill(container, message, KillReason::Other)
    })
}
