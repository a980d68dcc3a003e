//! In-place restart of all containers of a pod, requested by a container's restart rule.

use k8s_openapi::api::core::v1::{Container, PodSpec, PodStatus as ApiStatus};
use kubelet_cri_client::pod_status::{ContainerState, PodStatus};
use kubelet_pod_spec::restart_rules;

/// Condition: a container's exit restarts all containers of the pod.
pub(super) const ALL_CONTAINERS_RESTARTING: &str = "AllContainersRestarting";

/// Whether all containers must be restarted: the restart is under way, or a container's exit
/// requests it.
pub(super) fn is_due(spec: &PodSpec, status: &PodStatus, old: &ApiStatus) -> bool {
    restart_rules::can_restart_all(spec)
        && (is_under_way(old)
            || all_containers(spec).any(|container| asks_for_it(container, status, old)))
}

/// Whether the status reports a restart of all containers.
pub(super) fn is_under_way(status: &ApiStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|c| c.type_ == ALL_CONTAINERS_RESTARTING && c.status == "True")
}

/// Whether all earlier containers are removed.
pub(super) fn is_cleaned_up(spec: &PodSpec, status: &PodStatus) -> bool {
    all_containers(spec).all(|container| status.container(&container.name).is_none())
}

fn asks_for_it(container: &Container, status: &PodStatus, old: &ApiStatus) -> bool {
    let run = status.container(&container.name);
    let Some(run) = run.filter(|run| run.state == ContainerState::Exited) else {
        return false;
    };
    let reported = old
        .init_container_statuses
        .iter()
        .chain(&old.container_statuses)
        .flatten()
        .find(|reported| reported.name == container.name)
        .and_then(|reported| reported.state.as_ref()?.terminated.as_ref());
    restart_rules::restarts_all(container, run.exit_code)
        || reported.is_some_and(|end| restart_rules::restarts_all(container, end.exit_code))
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}
