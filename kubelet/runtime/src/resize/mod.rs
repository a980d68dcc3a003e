//! In-place resize: what running pods are granted of the CPU and memory that
//! their specs ask for, and how it is given to their containers.
//!
//! What a container was created for is in its annotations. What changed since is
//! kept in the pod's directory, so that it holds when the kubelet is restarted.

mod actuate;
mod checkpoint;
mod grants;
mod need;
mod plan;
mod refusal;
mod swap;
mod told;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodSpec, ResourceRequirements};
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_host::clock;

pub(super) use self::grants::Resizes;
use self::{grants::Granted, need::Need};
pub use self::{grants::is_resize, refusal::Refusal};
use super::RuntimeManager;

/// The pod is asked to use more or less than before, and the node has no room.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// The pod's containers are being given what they are to use now.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
/// Reason of a resize that the runtime, or what the container uses, is against.
const ERROR: &str = "Error";

/// What a pod's status shows of its resize.
#[derive(Clone, Debug, Default)]
pub struct ResizeReport {
    /// `PodResizePending` and `PodResizeInProgress`, as far as they hold.
    pub conditions: Vec<PodCondition>,
    /// What containers were given since they were created, by id.
    pub actuated: BTreeMap<String, ResourceRequirements>,
    /// What the pod as a whole still has, where it was granted something else.
    pub whole: Option<ResourceRequirements>,
}

/// Resources by the container's name.
type ByContainer = BTreeMap<String, ResourceRequirements>;

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// The run of a container that goes on now.
fn running<'a>(status: &'a PodStatus, container: &Container) -> Option<&'a ContainerStatus> {
    let run = status.container(&container.name)?;
    (run.state == ContainerState::Running).then_some(run)
}

fn same_resources(a: &Pod, b: &Pod) -> bool {
    let (Some(a), Some(b)) = (&a.spec, &b.spec) else {
        return true;
    };
    let of_pod = |spec: &PodSpec| Need::of(spec.resources.as_ref());
    let mut containers = all_containers(b);
    of_pod(a) == of_pod(b)
        && containers.all(|container| {
            let other = all_containers(a).find(|other| other.name == container.name);
            other.is_none_or(|other| {
                other.resources == container.resources
                    || Need::of(other.resources.as_ref()) == Need::of(container.resources.as_ref())
            })
        })
}

/// `pod` with the resources of `last` and its containers.
fn with_resources_of(pod: &Arc<Pod>, last: &Pod) -> Arc<Pod> {
    let last = last.spec.as_ref();
    let whole = last.map(|last| last.resources.clone().unwrap_or_default());
    changed(pod, whole.as_ref(), |container| {
        let last = last.into_iter().flat_map(all_containers);
        let mut same = last.filter(|other| other.name == container.name);
        Some(same.next()?.resources.clone().unwrap_or_default())
    })
}

/// `pod` with `whole` for all of it, if that is known, and other resources where
/// `resources` has some; the same one when nothing changes.
fn changed(
    pod: &Arc<Pod>,
    whole: Option<&ResourceRequirements>,
    resources: impl Fn(&Container) -> Option<ResourceRequirements>,
) -> Arc<Pod> {
    let other = |container: &Container| {
        let other = resources(container)?;
        (Need::of(Some(&other)) != Need::of(container.resources.as_ref())).then_some(other)
    };
    let Some(spec) = &pod.spec else {
        return Arc::clone(pod);
    };
    let is_other =
        |whole: &&ResourceRequirements| Need::of(Some(whole)) != Need::of(spec.resources.as_ref());
    let whole = whole.filter(is_other);
    if whole.is_none() && all_containers(spec).all(|container| other(container).is_none()) {
        return Arc::clone(pod);
    }
    let mut pod = Pod::clone(pod);
    if let Some(spec) = &mut pod.spec {
        if let Some(whole) = whole {
            spec.resources = some_resources(whole);
        }
        let init = spec.init_containers.iter_mut().flatten();
        for container in init.chain(&mut spec.containers) {
            if let Some(other) = other(container) {
                container.resources = Some(other);
            }
        }
    }
    Arc::new(pod)
}

/// None for a pod that has no resources as a whole.
fn some_resources(whole: &ResourceRequirements) -> Option<ResourceRequirements> {
    (*whole != ResourceRequirements::default()).then(|| whole.clone())
}

fn condition(type_: &str, reason: &str, message: String, generation: Option<i64>) -> PodCondition {
    PodCondition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        message: (!message.is_empty()).then_some(message),
        observed_generation: generation,
        last_probe_time: Some(clock::now_time()),
        last_transition_time: Some(clock::now_time()),
    }
}

fn begun(generation: Option<i64>) -> PodCondition {
    condition(RESIZE_IN_PROGRESS, "", String::new(), generation)
}

/// A condition with the same reason is the same one, seen again.
fn since(old: Option<PodCondition>, mut new: PodCondition) -> PodCondition {
    if let Some(old) = old.filter(|old| old.reason == new.reason) {
        new.last_transition_time = old.last_transition_time;
        if old.message == new.message && old.observed_generation == new.observed_generation {
            new.last_probe_time = old.last_probe_time;
        }
    }
    new
}
