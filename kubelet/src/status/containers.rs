//! Container statuses as the API has them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, PodSpec, PodStatus as ApiStatus,
};

use crate::{
    clock,
    runtime::{
        actions,
        pod_state::Waiting,
        pod_status::{self, PodStatus},
    },
};

/// Exit code of a container whose end nobody saw, as upstream.
const UNKNOWN_EXIT_CODE: i32 = 137;

/// What the statuses of a pod's containers are made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The spec of the pod.
    pub spec: &'a PodSpec,
    /// What the runtime has.
    pub status: &'a PodStatus,
    /// What was reported last.
    pub old: &'a ApiStatus,
    /// Why containers could not be started.
    pub waiting: &'a BTreeMap<String, Waiting>,
    /// Name of the runtime, the prefix of container ids.
    pub runtime_name: &'a str,
}

/// The statuses of the init containers.
pub fn init_container_statuses(inputs: Inputs<'_>) -> Vec<ContainerStatus> {
    let containers = inputs.spec.init_containers.iter().flatten();
    let old = inputs.old.init_container_statuses.as_deref();
    containers
        .map(|container| {
            let mut status = container_status(inputs, container, old, true);
            let terminated = status.state.as_ref().and_then(|s| s.terminated.as_ref());
            status.ready = terminated.is_some_and(|t| t.exit_code == 0);
            status
        })
        .collect()
}

/// The statuses of the containers.
pub fn container_statuses(inputs: Inputs<'_>) -> Vec<ContainerStatus> {
    let old = inputs.old.container_statuses.as_deref();
    let containers = inputs.spec.containers.iter();
    containers
        .map(|container| {
            let mut status = container_status(inputs, container, old, false);
            status.ready = status.state.as_ref().is_some_and(|s| s.running.is_some());
            status
        })
        .collect()
}

fn container_status(
    inputs: Inputs<'_>,
    container: &Container,
    old: Option<&[ContainerStatus]>,
    is_init: bool,
) -> ContainerStatus {
    let old = old
        .into_iter()
        .flatten()
        .find(|status| status.name == container.name);
    let mut runs = inputs
        .status
        .containers
        .iter()
        .filter(|c| c.name == container.name);
    let mut status = match runs.next() {
        Some(newest) => {
            let mut status = of_run(newest, old, inputs.runtime_name);
            let last = runs
                .next()
                .map(|last| state_of(last, inputs.runtime_name))
                .filter(|state| state.terminated.is_some());
            status.last_state = last.or_else(|| last_of_old(old, &status));
            status
        }
        None => without_run(inputs, container, old),
    };
    if let Some(waiting) = inputs.waiting.get(&container.name)
        && !(is_init && succeeded(&status))
        && actions::should_be_restarted(inputs.spec, container, inputs.status)
    {
        let ended = status.state.take().filter(|s| s.terminated.is_some());
        status.last_state = ended.or(status.last_state);
        status.state = Some(waiting_state(&waiting.reason, Some(&waiting.message)));
    }
    let running = status.state.as_ref().is_some_and(|s| s.running.is_some());
    // There are no startup probes, so what runs has started.
    status.started = Some(running);
    status
}

fn of_run(
    run: &pod_status::ContainerStatus,
    old: Option<&ContainerStatus>,
    runtime_name: &str,
) -> ContainerStatus {
    let was_running = old
        .and_then(|old| old.state.as_ref())
        .is_some_and(|state| state.running.is_some());
    let state = if run.state == pod_status::ContainerState::Unknown && was_running {
        unknown_end("The container could not be located when the pod was terminated")
    } else {
        state_of(run, runtime_name)
    };
    ContainerStatus {
        name: run.name.clone(),
        container_id: Some(container_id(run, runtime_name)),
        image: run.image.clone(),
        image_id: run.image_ref.clone(),
        restart_count: i32::try_from(run.restart_count).unwrap_or(i32::MAX),
        state: Some(state),
        ..ContainerStatus::default()
    }
}

/// The last end that was reported, of a run that the runtime has forgotten.
fn last_of_old(old: Option<&ContainerStatus>, new: &ContainerStatus) -> Option<ContainerState> {
    let old = old?;
    let ended = old.state.as_ref().filter(|s| s.terminated.is_some());
    if old.container_id != new.container_id && ended.is_some() {
        return ended.cloned();
    }
    old.last_state.clone()
}

/// The status of a container that the runtime has nothing of.
fn without_run(
    inputs: Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let has_init = inputs
        .spec
        .init_containers
        .as_ref()
        .is_some_and(|containers| !containers.is_empty());
    let reason = if has_init {
        "PodInitializing"
    } else {
        "ContainerCreating"
    };
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting_state(reason, None)),
        ..ContainerStatus::default()
    };
    let Some(old) = old else {
        return status;
    };
    let old_state = old.state.as_ref();
    if old_state.is_some_and(|state| state.terminated.is_some()) {
        // It was removed after it ended: what it ended with stays true.
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state = old.last_state.clone();
    if old_state.is_some_and(|state| state.running.is_some()) {
        status.last_state = Some(unknown_end(
            "The container could not be located when the pod was deleted.  \
             The container used to be Running",
        ));
        status.restart_count += 1;
    }
    status
}

fn state_of(run: &pod_status::ContainerStatus, runtime_name: &str) -> ContainerState {
    match run.state {
        pod_status::ContainerState::Running => ContainerState {
            running: Some(ContainerStateRunning {
                started_at: clock::from_nanos(run.started_at),
            }),
            ..ContainerState::default()
        },
        pod_status::ContainerState::Exited => ContainerState {
            terminated: Some(ContainerStateTerminated {
                container_id: Some(container_id(run, runtime_name)),
                exit_code: run.exit_code,
                started_at: clock::from_nanos(run.started_at),
                finished_at: clock::from_nanos(run.finished_at),
                reason: Some(run.reason.clone()),
                message: (!run.message.is_empty()).then(|| run.message.clone()),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        },
        pod_status::ContainerState::Created | pod_status::ContainerState::Unknown => {
            ContainerState {
                waiting: Some(ContainerStateWaiting::default()),
                ..ContainerState::default()
            }
        }
    }
}

fn unknown_end(message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: UNKNOWN_EXIT_CODE,
            reason: Some("ContainerStatusUnknown".to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

fn waiting_state(reason: &str, message: Option<&str>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.to_owned()),
            message: message.map(str::to_owned),
        }),
        ..ContainerState::default()
    }
}

fn container_id(run: &pod_status::ContainerStatus, runtime_name: &str) -> String {
    format!("{runtime_name}://{}", run.id)
}

fn succeeded(status: &ContainerStatus) -> bool {
    let terminated = status.state.as_ref().and_then(|s| s.terminated.as_ref());
    terminated.is_some_and(|terminated| terminated.exit_code == 0)
}
