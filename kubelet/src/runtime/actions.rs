//! What is to be done to a pod, from what its spec asks for and what the runtime
//! has of it. Decides only; nothing here calls anything.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::{
    hash::container_hash,
    pod_status::{ContainerState, ContainerStatus, PodStatus},
};

/// When the containers of a pod are started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartPolicy {
    /// However they ended.
    Always,
    /// When they failed.
    OnFailure,
    /// Not at all.
    Never,
}

impl RestartPolicy {
    /// The policy of a pod; upstream's default where it names none.
    pub fn of(spec: &PodSpec) -> Self {
        match spec.restart_policy.as_deref() {
            Some("OnFailure") => Self::OnFailure,
            Some("Never") => Self::Never,
            _ => Self::Always,
        }
    }

    /// Whether a container that ended with `exit_code` is started again.
    pub const fn restarts(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => exit_code != 0,
            Self::Never => false,
        }
    }
}

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

/// A running container that must not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerToKill {
    /// Its id in the runtime.
    pub id: String,
    /// Its name in the pod.
    pub name: String,
    /// Why, for people.
    pub message: String,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodActions {
    /// Stop every sandbox and container.
    pub kill_pod: bool,
    /// Then make a sandbox, as the n-th of the pod.
    pub create_sandbox: Option<u32>,
    /// The sandbox that is there and serves.
    pub sandbox_id: Option<String>,
    /// Containers to stop.
    pub kill: Vec<ContainerToKill>,
    /// The init container to start.
    pub start_init: Option<usize>,
    /// The containers to start.
    pub start: Vec<usize>,
}

impl PodActions {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.kill_pod
            && self.create_sandbox.is_none()
            && self.kill.is_empty()
            && self.start_init.is_none()
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
pub fn should_be_restarted(
    container: &Container,
    policy: RestartPolicy,
    status: &PodStatus,
) -> bool {
    match status.container(&container.name) {
        None => true,
        Some(status) => match status.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => policy.restarts(status.exit_code),
        },
    }
}

/// What brings the pod to what its spec asks for.
pub fn compute(pod: &Pod, status: &PodStatus) -> PodActions {
    let Some(spec) = &pod.spec else {
        return PodActions::default();
    };
    let policy = RestartPolicy::of(spec);
    let sandbox_id = match sandbox_need(spec, status) {
        SandboxNeed::Create { attempt } => return recreate(spec, status, policy, attempt),
        SandboxNeed::Keep { id } => id,
    };
    let mut actions = PodActions {
        sandbox_id: Some(sandbox_id.clone()),
        ..PodActions::default()
    };
    if !init_actions(spec, status, policy, &sandbox_id, &mut actions) {
        return actions;
    }
    let mut keep = 0;
    for (index, container) in spec.containers.iter().enumerate() {
        let status_of = status.container(&container.name);
        let Some(running) = status_of.filter(|c| c.state == ContainerState::Running) else {
            if should_be_restarted(container, policy, status) {
                actions.start.push(index);
                // It may run after all, and must not run twice.
                actions.kill.extend(unknown(status_of));
            }
            continue;
        };
        if running
            .hash
            .is_some_and(|hash| hash != container_hash(container))
        {
            actions.kill.push(ContainerToKill {
                id: running.id.clone(),
                name: running.name.clone(),
                message: "the container's definition changed".to_owned(),
            });
            actions.start.push(index);
        } else {
            keep += 1;
        }
    }
    actions.kill_pod = keep == 0 && actions.start.is_empty();
    actions
}

fn recreate(spec: &PodSpec, status: &PodStatus, policy: RestartPolicy, attempt: u32) -> PodActions {
    let mut actions = PodActions {
        kill_pod: true,
        ..PodActions::default()
    };
    // A pod that ran and is not to be restarted needs no further sandbox. One of
    // which nothing was started would wait for ever: it is still to run.
    let ran = |c: &ContainerStatus| c.state != ContainerState::Created;
    if policy == RestartPolicy::Never && attempt != 0 && status.containers.iter().any(ran) {
        return actions;
    }
    let start: Vec<usize> = (0..spec.containers.len())
        .filter(|index| {
            let done = status
                .container(&spec.containers[*index].name)
                .is_some_and(ContainerStatus::succeeded);
            !(done && policy == RestartPolicy::OnFailure)
        })
        .collect();
    if start.is_empty() {
        return actions;
    }
    actions.create_sandbox = Some(attempt);
    if spec.init_containers.as_ref().is_some_and(|c| !c.is_empty()) {
        actions.start_init = Some(0);
    } else {
        actions.start = start;
    }
    actions
}

/// Adds what the init containers need; whether all of them are done.
fn init_actions(
    spec: &PodSpec,
    status: &PodStatus,
    policy: RestartPolicy,
    sandbox_id: &str,
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
    if spec.containers.iter().any(|c| active(&c.name).is_some()) {
        return true;
    }
    let newest = init
        .iter()
        .enumerate()
        .rev()
        .find_map(|(index, container)| Some((index, active(&container.name)?)));
    let Some((index, newest)) = newest else {
        actions.start_init = Some(0);
        return false;
    };
    match newest.state {
        ContainerState::Running => {}
        ContainerState::Created => actions.start_init = Some(index),
        ContainerState::Unknown => {
            actions.kill.extend(unknown(Some(newest)));
            actions.start_init = Some(index);
        }
        ContainerState::Exited if newest.exit_code == 0 => {
            if index + 1 == init.len() {
                return true;
            }
            actions.start_init = Some(index + 1);
        }
        ContainerState::Exited if policy == RestartPolicy::Never => actions.kill_pod = true,
        ContainerState::Exited => actions.start_init = Some(index),
    }
    false
}

fn unknown(status: Option<&ContainerStatus>) -> Option<ContainerToKill> {
    status
        .filter(|c| c.state == ContainerState::Unknown)
        .map(|c| ContainerToKill {
            id: c.id.clone(),
            name: c.name.clone(),
            message: "its state is unknown: it must not run twice".to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::pod_status::{Reported, SandboxStatus};

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
        assert_eq!((actions.start_init, actions.start.len()), (Some(0), 0));
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
    fn init_containers_run_one_by_one() {
        let pod = pod("Always", &["i", "j"], &["a"]);
        let step = |containers| {
            let actions = compute(&pod, &has(containers));
            (actions.start_init, actions.start)
        };
        assert_eq!(step(vec![]), (Some(0), vec![]));
        assert_eq!(step(vec![ran("i", RUNNING, 0)]), (None, vec![]));
        assert_eq!(step(vec![ran("i", EXITED, 1)]), (Some(0), vec![]));
        assert_eq!(step(vec![ran("i", EXITED, 0)]), (Some(1), vec![]));
        let both = vec![ran("j", EXITED, 0), ran("i", EXITED, 0)];
        assert_eq!(step(both), (None, vec![0]));
        // Collected init containers are not run again under a running pod.
        assert_eq!(step(vec![ran("a", RUNNING, 0)]), (None, vec![]));
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
}
