//! The statuses of a pod's containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, EphemeralContainer, Pod, PodSpec,
    PodStatus as ApiStatus,
};
use kubelet_cri_client::pod_status::{self, PodStatus};
use kubelet_host::clock;
use kubelet_pod_spec::restart_rules;
use kubelet_runtime::{pod_state::Waiting, resize::ResizeReport};

use super::{
    container_state::{is_running, is_terminated},
    details,
    readiness::{Kind, Readiness},
};

/// Exit code of a container whose termination was not observed, as upstream.
const UNKNOWN_EXIT_CODE: i32 = 137;
/// Reason of a container whose termination was not observed.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
/// Reason of a container that was removed because all containers of the pod are restarted.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";

/// The inputs of container statuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inputs<'a> {
    pub(super) pod: &'a Pod,
    /// The spec of the pod.
    pub(super) spec: &'a PodSpec,
    /// The pod's state in the runtime.
    pub(super) status: &'a PodStatus,
    /// The last reported status.
    pub(super) old: &'a ApiStatus,
    /// Why containers could not be started, by container name.
    pub(super) waiting: &'a BTreeMap<String, Waiting>,
    /// Name of the runtime, the prefix of container IDs.
    pub(super) runtime_name: &'a str,
    /// Progress of the pod's resize, if any.
    pub(super) resize: Option<&'a ResizeReport>,
    pub(super) readiness: Readiness<'a>,
    /// Whether all containers are being restarted.
    pub(super) restarting_all: bool,
}

impl Inputs<'_> {
    fn default_reason(&self) -> &'static str {
        if self
            .spec
            .init_containers
            .as_ref()
            .is_some_and(|c| !c.is_empty())
        {
            "PodInitializing"
        } else {
            "ContainerCreating"
        }
    }
}

/// The statuses of the init containers, in spec order.
pub(super) fn init_container_statuses(inputs: Inputs<'_>) -> Vec<ContainerStatus> {
    let old = inputs.old.init_container_statuses.as_deref();
    let containers = inputs.spec.init_containers.iter().flatten();
    containers
        .map(|container| container_status(inputs, container, old, Kind::Init))
        .collect()
}

/// The statuses of the regular containers, sorted by name.
pub(super) fn container_statuses(inputs: Inputs<'_>) -> Vec<ContainerStatus> {
    let old = inputs.old.container_statuses.as_deref();
    let containers = inputs.spec.containers.iter();
    by_name(containers.map(|container| container_status(inputs, container, old, Kind::Regular)))
}

/// The statuses of the ephemeral containers, sorted by name. They are never ready, as nothing
/// depends on them.
pub(super) fn ephemeral_container_statuses(inputs: Inputs<'_>) -> Vec<ContainerStatus> {
    let old = inputs.old.ephemeral_container_statuses.as_deref();
    let containers = inputs.spec.ephemeral_containers.iter().flatten();
    by_name(containers.map(|ephemeral| {
        let container = as_container(ephemeral);
        let old = named(old, &ephemeral.name);
        let mut status = stated(inputs, &container, old);
        if will_start(inputs, &container) {
            wait(inputs, &container, &mut status);
        }
        status
    }))
}

fn by_name(statuses: impl Iterator<Item = ContainerStatus>) -> Vec<ContainerStatus> {
    let mut statuses: Vec<ContainerStatus> = statuses.collect();
    statuses.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    statuses
}

/// The fields of an ephemeral container that the status needs.
fn as_container(ephemeral: &EphemeralContainer) -> Container {
    Container {
        name: ephemeral.name.clone(),
        image: ephemeral.image.clone(),
        volume_mounts: ephemeral.volume_mounts.clone(),
        ..Container::default()
    }
}

fn named<'a>(statuses: Option<&'a [ContainerStatus]>, name: &str) -> Option<&'a ContainerStatus> {
    statuses
        .into_iter()
        .flatten()
        .find(|status| status.name == name)
}

fn container_status(
    inputs: Inputs<'_>,
    container: &Container,
    old: Option<&[ContainerStatus]>,
    kind: Kind,
) -> ContainerStatus {
    let old = named(old, &container.name);
    let mut status = stated(inputs, container, old);
    if let Some(run) = inputs.status.container(&container.name) {
        let resources = details::resources(container, run, &status, old, inputs.resize);
        status.resources = Some(resources);
        status.allocated_resources = details::allocated(container);
    }
    if kind == Kind::Init && is_done(inputs, container, &mut status) {
        // It is not restarted.
    } else if will_start(inputs, container) {
        wait(inputs, container, &mut status);
    }
    let had_started =
        old.is_some_and(|old| old.started == Some(true) && old.container_id == status.container_id);
    inputs
        .readiness
        .set(&mut status, container, kind, had_started);
    status
}

/// The status from the runtime's state and the last report.
fn stated(
    inputs: Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut runs = inputs
        .status
        .containers
        .iter()
        .filter(|run| run.name == container.name);
    let Some(newest) = runs.next() else {
        return without_run(inputs, container, old);
    };
    let mut status = of_run(inputs, newest, old);
    let last = runs
        .next()
        .map(|last| state_of(last, inputs.runtime_name))
        .filter(|state| state.terminated.is_some());
    status.last_state = last.or(status.last_state);
    status.volume_mounts = details::volume_mounts(container, Some(newest));
    status.user = details::user(newest);
    status.stop_signal.clone_from(&newest.reported.stop_signal);
    status
}

fn of_run(
    inputs: Inputs<'_>,
    run: &pod_status::ContainerStatus,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: run.name.clone(),
        container_id: Some(container_id(run, inputs.runtime_name)),
        image: run.image.clone(),
        image_id: run.image_ref.clone(),
        restart_count: i32::try_from(run.restart_count).unwrap_or(i32::MAX),
        state: Some(state_of(run, inputs.runtime_name)),
        ..ContainerStatus::default()
    };
    let Some(old) = old else {
        return status;
    };
    status.last_state = last_of_old(old, &status);
    let (was_running, had_ended) = (is_running(old), is_terminated(old));
    let mut least = old.restart_count;
    match run.state {
        pod_status::ContainerState::Unknown if was_running => {
            let reason = if inputs.restarting_all {
                RESTARTING_ALL
            } else {
                STATUS_UNKNOWN
            };
            let message = "The container could not be located when the pod was terminated";
            status.state = Some(ended_unseen(reason, message));
            least = least.saturating_add(1);
        }
        // Another container terminated, which the runtime has removed.
        pod_status::ContainerState::Running if had_ended => least = least.saturating_add(1),
        _ => {}
    }
    status.restart_count = status.restart_count.max(least);
    status
}

/// The last reported termination, of a container that the runtime has removed.
fn last_of_old(old: &ContainerStatus, new: &ContainerStatus) -> Option<ContainerState> {
    let ended = old.state.as_ref().filter(|s| s.terminated.is_some());
    if old.container_id != new.container_id && ended.is_some() {
        return ended.cloned();
    }
    let last = old.last_state.as_ref();
    last.filter(|last| last.terminated.is_some()).cloned()
}

/// The status of a container that the runtime does not have.
fn without_run(
    inputs: Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting_state(Some(inputs.default_reason()), None)),
        volume_mounts: details::volume_mounts(container, None),
        ..ContainerStatus::default()
    };
    let Some(old) = old else {
        return status;
    };
    if inputs.restarting_all && (is_running(old) || is_terminated(old)) {
        let message = "The container is removed because RestartAllContainers in place";
        status.state = Some(waiting_state(Some(RESTARTING_ALL), Some(message)));
        status.last_state = Some(ended_unseen(RESTARTING_ALL, message));
        status.restart_count = old.restart_count.saturating_add(1);
        return status;
    }
    if is_terminated(old) {
        // It was removed after it terminated; the last report stays valid.
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state.clone_from(&old.last_state);
    let known_end = old
        .last_state
        .as_ref()
        .is_some_and(|s| s.terminated.is_some());
    if is_running(old) && !known_end {
        let message = "The container could not be located when the pod was deleted.  \
                       The container used to be Running";
        status.last_state = Some(ended_unseen(STATUS_UNKNOWN, message));
        if inputs.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }
    status
}

/// Whether an init container has completed. If the runtime has removed it, it has completed when
/// regular containers exist.
fn is_done(inputs: Inputs<'_>, container: &Container, status: &mut ContainerStatus) -> bool {
    if let Some(run) = inputs.status.container(&container.name) {
        return run.succeeded();
    }
    let others = || inputs.spec.containers.iter().map(|c| &c.name);
    let waits = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
    if !waits
        || restart_rules::is_sidecar(container)
        || !others().any(|name| inputs.status.container(name).is_some())
    {
        return false;
    }
    let message = "Unable to get init container status from container runtime and pod has been \
                   initialized, treat it as exited normally";
    status.state = Some(ContainerState {
        terminated: Some(ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    });
    true
}

/// Whether the next sync starts the container.
fn will_start(inputs: Inputs<'_>, container: &Container) -> bool {
    if inputs.pod.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let Some(run) = inputs.status.container(&container.name) else {
        return true;
    };
    match run.state {
        pod_status::ContainerState::Running => false,
        pod_status::ContainerState::Created | pod_status::ContainerState::Unknown => true,
        pod_status::ContainerState::Exited => {
            restart_rules::restarts(inputs.spec, container, run.exit_code)
        }
    }
}

/// Reports why the container could not be started, if known.
fn wait(inputs: Inputs<'_>, container: &Container, status: &mut ContainerStatus) {
    let Some(waiting) = inputs.waiting.get(&container.name) else {
        return;
    };
    let ended = status.state.take().filter(|s| s.terminated.is_some());
    status.last_state = ended.or(status.last_state.take());
    let message = Some(waiting.message.as_str()).filter(|message| !message.is_empty());
    status.state = Some(waiting_state(Some(&waiting.reason), message));
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
                reason: (!run.reason.is_empty()).then(|| run.reason.clone()),
                message: (!run.message.is_empty()).then(|| run.message.clone()),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        },
        pod_status::ContainerState::Created | pod_status::ContainerState::Unknown => {
            waiting_state(None, None)
        }
    }
}

/// The state of a container whose termination was not observed.
fn ended_unseen(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            exit_code: UNKNOWN_EXIT_CODE,
            reason: Some(reason.to_owned()),
            message: Some(message.to_owned()),
            ..ContainerStateTerminated::default()
        }),
        ..ContainerState::default()
    }
}

/// The state of a container that must have terminated, as its pod has.
pub(super) fn ended_with_its_pod() -> ContainerState {
    let message = "The container could not be located when the pod was terminated";
    ended_unseen(STATUS_UNKNOWN, message)
}

fn waiting_state(reason: Option<&str>, message: Option<&str>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: reason.map(str::to_owned),
            message: message.map(str::to_owned),
        }),
        ..ContainerState::default()
    }
}

fn container_id(run: &pod_status::ContainerStatus, runtime_name: &str) -> String {
    format!("{runtime_name}://{}", run.id)
}

/// Whether the container is waiting and never ran.
pub(super) fn never_ran(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|s| s.waiting.is_some());
    let last = status.last_state.as_ref();
    waits && last.is_none_or(|last| last.terminated.is_none())
}
