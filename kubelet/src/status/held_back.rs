//! Pods that are admitted but held back.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus as ApiStatus};
use kubelet_pod_spec::phase::Phase;

/// Waiting reason of the containers of such a pod.
const BLOCKED: &str = "Blocked";

/// Sets the reason of waiting containers.
pub(super) fn block(statuses: &mut [ContainerStatus]) {
    for status in statuses {
        let waiting = status.state.as_mut().and_then(|s| s.waiting.as_mut());
        if let Some(waiting) = waiting {
            waiting.reason = Some(BLOCKED.to_owned());
        }
    }
}

/// Whether a status is that of a pod that is held back.
pub(super) fn is_held_back(status: &ApiStatus) -> bool {
    let init = status.init_container_statuses.iter();
    let mut statuses = init.chain(&status.container_statuses).flatten();
    let is_pending = Phase::parse(status.phase.as_deref()) == Phase::Pending;
    is_pending
        && statuses.any(|status| {
            let waiting = status.state.as_ref().and_then(|s| s.waiting.as_ref());
            waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(BLOCKED))
        })
}
