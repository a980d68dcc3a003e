//! Garbage collection: removes images that no pod uses, and containers and sandboxes that have
//! ended (upstream: `pkg/kubelet/images`, `pkg/kubelet/kuberuntime/kuberuntime_gc.go`).
//!
//! An [`ImageCollector`] removes unused images by their age, and while the image file system is too
//! full, the least recently used first. A [`ContainerCollector`] removes what is left of pods that
//! no longer exist, and all but the last dead containers and sandboxes of the others. Both collect
//! periodically, and on request when the node is about to evict pods.
//!
//! The log directories of deleted pods and links to removed logs are removed by the kubelet's
//! housekeeping.

#![forbid(unsafe_code)]

mod containers;
mod images;

pub use self::{
    containers::{
        ContainerCandidate, ContainerCandidates, ContainerCollector, ContainerGcError,
        ContainerGcOptions, ContainerReason, PodStates, RemovedContainers, SandboxCandidate,
    },
    images::{
        DiskSpace, FreedImages, ImageCandidate, ImageCandidates, ImageCollector, ImageGcError,
        ImageGcOptions, ImageHost, ImageReason, ImageVolumes,
    },
};
