//! What of a pod's status must not be forgotten: that the pod has ended, and which of its
//! containers were started. A status from elsewhere, which lacks it, gets it from the known one.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::phase::Phase;

/// Whether the pod has succeeded or failed, and is not to be started again.
pub fn has_ended(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(is_end)
}

/// Whether a pod of this status is not to be started again.
pub fn is_end(status: &PodStatus) -> bool {
    Phase::parse(status.phase.as_deref()).is_terminal()
}

/// Whether a pod of this status has ended, or some container of it was ever started.
pub fn has_run(status: &PodStatus) -> bool {
    is_end(status) || !started(status).is_empty()
}

/// Names of the containers that were ever started, in order.
pub fn started(status: &PodStatus) -> Vec<&str> {
    let init = status.init_container_statuses.iter().flatten();
    let main = status.container_statuses.iter().flatten();
    let all = init.chain(main).filter(|container| was_started(container));
    let mut names: Vec<&str> = all.map(|container| container.name.as_str()).collect();
    names.sort_unstable();
    names
}

fn was_started(container: &ContainerStatus) -> bool {
    [&container.state, &container.last_state]
        .into_iter()
        .flatten()
        .any(|state| state.running.is_some() || state.terminated.is_some())
}

/// Whether something of `known` matters that `status` does not say.
pub fn is_news(status: &PodStatus, known: &PodStatus) -> bool {
    if is_end(status) {
        return false;
    }
    let listed = started(status);
    is_end(known) || started(known).iter().any(|name| !listed.contains(name))
}

/// The status with what `known` says of the pod that matters and it does not say itself: its
/// end, and containers that were started.
pub fn with_known(mut status: PodStatus, known: &PodStatus) -> PodStatus {
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

/// Adds the containers that were started by what is known, and are not listed as such.
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
