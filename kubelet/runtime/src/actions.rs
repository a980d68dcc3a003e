//! What is to be done to a pod, from what its spec asks for, what the runtime has
//! of it and what its probes found. Decides only; nothing here calls anything.

mod init;
#[cfg(test)]
mod tests;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_pod_spec::restart_rules::{RestartPolicy, restarts, restarts_all};
use kubelet_prober::results::{ProbeResult, ProbeResults, ProbeType};

use super::hash::container_hash;

/// Whether the pod needs a sandbox other than its newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxNeed {
    /// The newest serves.
    Keep {
        /// Its id.
        id: String,
    },
    /// A new one is to be made.
    Create {
        /// How many there were before.
        attempt: u32,
    },
}

/// What asks for the end of a container, where its grace period depends on that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// Its liveness probe failed.
    LivenessProbe,
    /// Its startup probe failed.
    StartupProbe,
    /// Anything else.
    Other,
}

/// A running container that must not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToKill {
    /// Its id in the runtime.
    pub id: String,
    /// Its name in the pod.
    pub name: String,
    /// Why, for people.
    pub message: String,
    /// Why.
    pub reason: KillReason,
}

/// A container that is to vanish from the runtime, so that the pod runs anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToReset {
    /// Its id in the runtime.
    pub id: String,
    /// Whether it is to be stopped first.
    pub kill: bool,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Stop every sandbox and container.
    pub kill_pod: bool,
    /// Containers to stop.
    pub kill: Vec<ContainerToKill>,
    /// Containers to remove, because one that ended has the pod run anew; then
    /// there is nothing else to do. Those whose end asks for it are the last: as
    /// long as anything is left of the others, they tell so.
    pub reset: Vec<ContainerToReset>,
    /// Make a sandbox, as the n-th of the pod.
    pub create_sandbox: Option<u32>,
    /// The sandbox that is there and serves.
    pub sandbox_id: Option<String>,
    /// The ephemeral containers to start.
    pub start_ephemeral: Vec<usize>,
    /// The init containers to start.
    pub start_init: Vec<usize>,
    /// The containers to start.
    pub start: Vec<usize>,
}

impl PodActions {
    /// Whether there is nothing to do.
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

/// Whether the newest sandbox serves: it is the only one that is ready, on the
/// network that the spec asks for, and has an address there.
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

/// Whether a container is to be started, being in the state it is.
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

/// Whether the end of a container has the whole pod run anew, and something is
/// left of what is to be removed first.
pub fn is_restarting_all(spec: &PodSpec, status: &PodStatus) -> bool {
    containers(spec).any(|container| {
        status
            .container(&container.name)
            .is_some_and(|newest| asks_for_all(container, newest))
    })
}

/// What brings the pod to what its spec asks for.
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
        // They wait for nothing, and run once.
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
                // It may run after all, and must not run twice.
                actions
                    .kill
                    .extend(newest.and_then(|c| unknown(c, "Container")));
            }
            continue;
        };
        let (message, reason, restart) = if is_changed(container, running) {
            // Whatever the policy: it is another container.
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
    // A pod that ran and is not to be restarted needs no further sandbox. One of
    // which nothing was started would wait for ever: it is still to run.
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

/// Whether a container runs that was made from another definition.
fn is_changed(container: &Container, running: &ContainerStatus) -> bool {
    running
        .hash
        .is_some_and(|hash| hash != container_hash(container))
}

/// The probe that a running container failed for good.
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

/// The end of a container of which nobody knows whether it runs.
fn unknown(container: &ContainerStatus, kind: &str) -> Option<ContainerToKill> {
    (container.state == ContainerState::Unknown).then(|| {
        let message = format!("{kind} is in \"unknown\" state, try killing it before restart");
        kill(container, message, KillReason::Other)
    })
}
