//! What eviction needs of the rest of the kubelet.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::identity::PodUid;

use crate::{
    observation::{Layout, Observed},
    signal::Signal,
    usage::PodUsages,
};

/// How a pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The message of its status.
    pub message: String,
    /// How long it may take to end.
    pub grace_period: Duration,
    /// Whether the pod is evicted for others, and gets the condition `DisruptionTarget`.
    pub is_disruption: bool,
}

/// What is measured of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageDepth {
    /// Volumes, logs and files of the kubelet, as they were measured last.
    Files,
    /// Those, and what the kernel tells: memory and processes.
    Kernel,
    /// Those, and what the runtime tells: writable layers.
    Everything,
    /// Everything; volumes, logs and files are measured again, which may take seconds.
    Fresh,
}

/// What the node can free without ending a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Dead containers.
    Containers,
    /// Images that no container uses.
    Images,
}

/// A threshold of memory that the kernel watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryMark {
    /// Whose memory it is.
    pub signal: Signal,
    /// The working set in bytes at which the threshold is met.
    pub working_set: u64,
}

/// Measures and acts on the node.
pub trait EvictionHost: Send + Sync {
    /// Measures the signals of the node; pods are not measured.
    fn observe(&self) -> impl Future<Output = Result<Observed, String>> + Send;

    /// The active pods.
    fn pods(&self) -> Vec<Arc<Pod>>;

    /// Measures the pods.
    fn usages(&self, depth: UsageDepth) -> impl Future<Output = Result<PodUsages, String>> + Send;

    /// Frees what the node does not need. Returns whether there was anything.
    fn reclaim(&self, what: Reclaim) -> impl Future<Output = Result<bool, String>> + Send;

    /// Ends a pod. Returns once its containers have ended; the error says why they have not.
    fn evict(
        &self,
        pod: &Arc<Pod>,
        eviction: Eviction,
    ) -> impl Future<Output = Result<(), String>> + Send;

    /// Resolves when the kernel reports that the memory above one of the marks is in use. May never
    /// resolve.
    fn memory_is_scarce(&self, marks: &[MemoryMark]) -> impl Future<Output = ()> + Send;

    /// Removes the containers of pods that have ended, with their logs.
    fn remove_containers(&self, pods: &[PodUid])
    -> impl Future<Output = Result<(), String>> + Send;

    /// Whether the resources of a pod on the node are released.
    fn is_cleaned_up(&self, uid: &PodUid) -> bool;
}

/// What is freed for a signal before a pod is evicted, in this order.
pub(crate) const fn reclaims(signal: Signal, layout: Layout) -> &'static [Reclaim] {
    const BOTH: &[Reclaim] = &[Reclaim::Containers, Reclaim::Images];
    let (is_node_fs, is_image_fs) = match signal {
        Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable => {
            return &[];
        }
        Signal::NodeFsAvailable | Signal::NodeFsInodesFree => (true, false),
        Signal::ImageFsAvailable | Signal::ImageFsInodesFree => (false, true),
        Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree => (false, false),
    };
    match layout {
        Layout::Single => BOTH,
        Layout::ImagesApart if is_node_fs => &[],
        Layout::ImagesApart => BOTH,
        Layout::OnlyImagesApart if is_image_fs => &[Reclaim::Images],
        Layout::OnlyImagesApart => &[Reclaim::Containers],
    }
}
