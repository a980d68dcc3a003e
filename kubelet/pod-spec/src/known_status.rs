//! The parts of a pod's status that must not be lost: whether the pod has terminated, and which of
//! its containers were started. A status from another source that lacks them is completed from the
//! known one.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::phase::Phase;

/// Whether the pod has succeeded or failed and must not be started again.
pub fn has_ended(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(is_end)
}

/// Whether a pod with this status must not be started again.
pub fn is_end(status: &PodStatus) -> bool {
    Phase::parse(status.phase.as_deref()).is_terminal()
}

/// Whether a pod with this status has terminated, or any of its containers was ever started.
pub fn has_run(status: &PodStatus) -> bool {
    is_end(status) || !started(status).is_empty()
}

/// Names of the containers that were ever started, sorted.
pub fn started(status: &PodStatus) -> Vec<&str> {
    let init = status.init_container_statuses.iter().flatten();
    let main = status.container_statuses.iter().flatten();
    let all = init.chain(main).filter(|container| was_started(container));
    let mut names: Vec<&str> = all.map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Whether the same containers run in both, and at least one.
pub fn runs_the_same(a: &PodStatus, b: &PodStatus) -> bool {
    let running = running(a);
    !running.is_empty() && running == self::running(b)
}

/// IDs of the running containers, sorted.
fn running(status: &PodStatus) -> Vec<&str> {
    let init = status.init_container_statuses.iter().flatten();
    let all = init.chain(status.container_statuses.iter().flatten());
    let is_running = |container: &&ContainerStatus| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.running.is_some())
    };
    let mut ids: Vec<&str> = all
        .filter(is_running)
        .filter_map(|container| container.container_id.as_deref())
        .collect();
    ids.sort_unstable();
    ids
}

fn was_started(container: &ContainerStatus) -> bool {
    [&container.state, &container.last_state]
        .into_iter()
        .flatten()
        .any(|state| state.running.is_some() || state.terminated.is_some())
}

/// Whether `known` has information of this kind that `status` lacks.
pub fn lacks_progress(status: &PodStatus, known: &PodStatus) -> bool {
    if is_end(status) {
        return false;
    }
    let listed = started(status);
    is_end(known) || started(known).iter().any(|name| !listed.contains(name))
}

/// The status, completed with the parts that it lacks and `known` has: the end of the pod, and
/// started containers.
pub fn with_progress_of(mut status: PodStatus, known: &PodStatus) -> PodStatus {
    if is_end(&status) {
        return status;
    }
    if is_end(known) {
        return known.clone();
    }
    add_started(
        &mut status.init_container_statuses,
        &known.init_container_statuses,
    );
    add_started(&mut status.container_statuses, &known.container_statuses);
    status
}

/// Adds containers that were started according to `known` and are not listed as started.
fn add_started(listed: &mut Option<Vec<ContainerStatus>>, known: &Option<Vec<ContainerStatus>>) {
    for known in known.iter().flatten().filter(|known| was_started(known)) {
        let listed = listed.get_or_insert_default();
        match listed.iter_mut().find(|one| one.name == known.name) {
            Some(one) if was_started(one) => {}
            Some(one) => *one = known.clone(),
            None => listed.push(known.clone()),
        }
    }
}
