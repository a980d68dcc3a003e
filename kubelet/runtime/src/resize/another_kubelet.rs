//! What another kubelet had granted. Its records are elsewhere, but its status of the pod tells while
//! a resize is pending.

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};

use super::{RESIZE_PENDING, all_containers, checkpoint::Checkpoint};

/// The resources that can be resized.
const RESIZABLE: [&str; 2] = ["cpu", "memory"];

/// The grant that a pod's status tells; `None` if no resize is pending, and so what the pod asks for
/// was granted.
pub(super) fn grant_in_status(pod: &Pod) -> Option<Checkpoint> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let conditions = status.conditions.iter().flatten();
    let is_refused = conditions.into_iter().any(|c| c.type_ == RESIZE_PENDING);
    let is_unseen = status.observed_generation.is_some_and(|seen| {
        let wanted = pod.metadata.generation;
        wanted.is_some_and(|wanted| wanted > seen)
    });
    if !is_refused && !is_unseen {
        return None;
    }
    let granted = all_containers(spec).filter_map(|container| {
        let told = told(status, container)?;
        Some((container.name.clone(), as_told(container, told)))
    });
    Some(Checkpoint {
        granted: granted.collect(),
        ..Checkpoint::default()
    })
}

fn told<'a>(status: &'a PodStatus, container: &Container) -> Option<&'a ResourceRequirements> {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = init.chain(status.container_statuses.iter().flatten());
    all.find(|one| one.name == container.name)?
        .resources
        .as_ref()
}

/// The container's resources, with the CPU and memory that its status tells.
fn as_told(container: &Container, told: &ResourceRequirements) -> ResourceRequirements {
    let mut resources = container.resources.clone().unwrap_or_default();
    for (own, told) in [
        (&mut resources.requests, &told.requests),
        (&mut resources.limits, &told.limits),
    ] {
        let mut amounts = own.take().unwrap_or_default();
        amounts.retain(|name, _| !RESIZABLE.contains(&&**name));
        let told = told.iter().flatten();
        let resizable = told.filter(|(name, _)| RESIZABLE.contains(&&***name));
        amounts.extend(resizable.map(|(name, amount)| (name.clone(), amount.clone())));
        *own = Some(amounts).filter(|amounts| !amounts.is_empty());
    }
    resources
}
