//! The order in which pods are evicted (documented as "Pod selection for kubelet eviction").
//!
//! For memory and disk: first pods that use more than they request, then those of lower priority,
//! then those that exceed their requests the most. Process IDs cannot be requested: first pods of
//! lower priority, then those with the most processes. Nothing is known of a pod without
//! measurements, so it goes before others.

use std::{cmp::Reverse, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{identity::PodUid, quantity::NANOS, resources};
use kubelet_resource_analyzer::FileUsage;

use crate::{
    observation::Layout,
    signal::{Resource, Signal},
    usage::{PodUsage, PodUsages, sum},
};

/// Sorts pods by the order in which they are evicted for a signal. Pods of equal rank keep their
/// order.
pub(crate) fn rank(pods: &mut [Arc<Pod>], usages: &PodUsages, signal: Signal, layout: Layout) {
    pods.sort_by_cached_key(|pod| Rank::of(pod, usages.get(&PodUid::of(pod)), signal, layout));
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// By priority, and bytes or inodes above the request.
    Requested(Group, i32, Reverse<i128>),
    /// By priority, and processes.
    Processes(i32, Group, Reverse<u64>),
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    NotMeasured,
    AboveRequest,
    WithinRequest,
}

impl Rank {
    fn of(pod: &Pod, usage: Option<&PodUsage>, signal: Signal, layout: Layout) -> Self {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
        let priority = priority.unwrap_or_default();
        let resource = signal.resource();
        if resource == Resource::Pids {
            let group = usage.map_or(Group::NotMeasured, |_| Group::WithinRequest);
            let processes = usage.and_then(|usage| usage.processes);
            return Self::Processes(priority, group, Reverse(processes.unwrap_or_default()));
        }
        let Some(usage) = usage else {
            return Self::Requested(Group::NotMeasured, priority, Reverse(0));
        };
        let used = match resource {
            Resource::Memory => usage.memory.unwrap_or_default(),
            Resource::Inodes => on_disk(usage, signal, layout).inodes,
            _ => on_disk(usage, signal, layout).bytes,
        };
        let above = (i128::from(used) * NANOS).saturating_sub(requested(pod, resource));
        let group = match above > 0 {
            true => Group::AboveRequest,
            false => Group::WithinRequest,
        };
        Self::Requested(group, priority, Reverse(above))
    }
}

/// The pod's request in billionths. Inodes cannot be requested.
fn requested(pod: &Pod, resource: Resource) -> i128 {
    let requests = pod.spec.as_ref().map(resources::requests);
    let amount = requests.and_then(|requests| requests.get(resource.as_str()).copied());
    amount.unwrap_or_default()
}

/// What the pod uses of the file system of a signal.
fn on_disk(usage: &PodUsage, signal: Signal, layout: Layout) -> FileUsage {
    use Signal::{ImageFsAvailable, ImageFsInodesFree, NodeFsAvailable, NodeFsInodesFree};
    let is_node_fs = matches!(signal, NodeFsAvailable | NodeFsInodesFree);
    let is_image_fs = matches!(signal, ImageFsAvailable | ImageFsInodesFree);
    let (layers, files) = match layout {
        Layout::Single => (true, true),
        Layout::ImagesApart => (!is_node_fs, is_node_fs),
        // Pods do not use what only images are on.
        Layout::OnlyImagesApart => (!is_image_fs, !is_image_fs),
    };
    let containers = usage.containers.values();
    let of_containers = containers.flat_map(|container| {
        let layer = container.layer.filter(|_| layers);
        layer.into_iter().chain(container.logs.filter(|_| files))
    });
    let volumes = usage.local_volumes.values().copied();
    sum(of_containers.chain(volumes.filter(|_| files)))
}

#[cfg(test)]
mod tests;
