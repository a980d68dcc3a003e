//! In-place resize of pods: granting the CPU and memory that the specs of running pods request, and
//! applying them to the containers.
//!
//! The resources that a container was created with are in its annotations. Later changes are stored
//! in the pod's directory, so that they survive a restart of the kubelet.

mod actuate;
mod another_kubelet;
mod checkpoint;
mod cpu_memory;
mod events;
mod grants;
mod metrics;
mod plan;
mod refusal;
mod swap;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodSpec, ResourceRequirements};
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_host::clock;

pub(super) use self::grants::PodGrants;
use self::{cpu_memory::CpuMemory, grants::PodGrant};
pub use self::{grants::is_resize, metrics::ResizeTrigger, refusal::ResizeRefusal};
use super::RuntimeManager;

/// Condition of a pod whose resize is deferred or infeasible.
pub const RESIZE_PENDING: &str = "PodResizePending";
/// Condition of a pod whose granted resources are being applied.
pub const RESIZE_IN_PROGRESS: &str = "PodResizeInProgress";
/// Reason of a resize in progress that failed, for example because the runtime returned an error or
/// the memory usage exceeds the new limit.
const ERROR: &str = "Error";

/// The resize in a pod's status.
#[derive(Clone, Debug, Default)]
pub struct ResizeReport {
    /// `PodResizePending` and `PodResizeInProgress`, if true.
    pub conditions: Vec<PodCondition>,
    /// The resources applied to containers since their creation, by container ID.
    pub actuated: BTreeMap<String, ResourceRequirements>,
    /// The pod-level resources in force, if they differ from the granted ones.
    pub whole: Option<ResourceRequirements>,
}

/// Resources by container name.
type ByContainer = BTreeMap<String, ResourceRequirements>;

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}

/// The running container with the name of `container`.
fn running<'a>(status: &'a PodStatus, container: &Container) -> Option<&'a ContainerStatus> {
    let run = status.container(&container.name)?;
    (run.state == ContainerState::Running).then_some(run)
}

fn same_resources(a: &Pod, b: &Pod) -> bool {
    let (Some(a), Some(b)) = (&a.spec, &b.spec) else {
        return true;
    };
    let of_pod = |spec: &PodSpec| CpuMemory::of(spec.resources.as_ref());
    let mut containers = all_containers(b);
    of_pod(a) == of_pod(b)
        && containers.all(|container| {
            let other = all_containers(a).find(|other| other.name == container.name);
            other.is_none_or(|other| {
                other.resources == container.resources
                    || CpuMemory::of(other.resources.as_ref())
                        == CpuMemory::of(container.resources.as_ref())
            })
        })
}

/// `pod` with the pod-level and container resources of `last`.
fn with_resources_of(pod: &Arc<Pod>, last: &Pod) -> Arc<Pod> {
    let last = last.spec.as_ref();
    let whole = last.map(|last| last.resources.clone().unwrap_or_default());
    changed(pod, whole.as_ref(), |container| {
        let last = last.into_iter().flat_map(all_containers);
        let mut same = last.filter(|other| other.name == container.name);
        Some(same.next()?.resources.clone().unwrap_or_default())
    })
}

/// `pod` with the pod-level resources `whole`, if known, and the container resources that
/// `resources` returns. Returns the same pod if nothing changes.
fn changed(
    pod: &Arc<Pod>,
    whole: Option<&ResourceRequirements>,
    resources: impl Fn(&Container) -> Option<ResourceRequirements>,
) -> Arc<Pod> {
    let other = |container: &Container| {
        let other = resources(container)?;
        (CpuMemory::of(Some(&other)) != CpuMemory::of(container.resources.as_ref()))
            .then_some(other)
    };
    let Some(spec) = &pod.spec else {
        return Arc::clone(pod);
    };
    let is_other = |whole: &&ResourceRequirements| {
        CpuMemory::of(Some(whole)) != CpuMemory::of(spec.resources.as_ref())
    };
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

/// `None` if the pod has no pod-level resources.
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

fn in_progress_condition(generation: Option<i64>) -> PodCondition {
    condition(RESIZE_IN_PROGRESS, "", String::new(), generation)
}

/// A condition keeps its transition time while its reason stays the same.
fn since(old: Option<PodCondition>, mut new: PodCondition) -> PodCondition {
    if let Some(old) = old.filter(|old| old.reason == new.reason) {
        new.last_transition_time = old.last_transition_time;
        if old.message == new.message && old.observed_generation == new.observed_generation {
            new.last_probe_time = old.last_probe_time;
        }
    }
    new
}
