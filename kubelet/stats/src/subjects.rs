//! What is measured.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// CPU and memory only.
    CpuAndMemory,
    /// Everything that the kernel tells.
    Kernel,
    /// Everything, in the time that scrapers have: if the runtime does not report writable layers and
    /// images soon, its last report counts.
    Prompt,
    /// Everything; the runtime is asked for writable layers and images.
    Everything,
}

/// A part of the system beside the pods, by its name in the summary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemContainer {
    /// The kubelet.
    Kubelet,
    /// The container runtime.
    Runtime,
    /// All pods together.
    Pods,
    /// The system's other daemons.
    Misc,
}

impl SystemContainer {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kubelet, Self::Runtime, Self::Misc, Self::Pods];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Runtime => "runtime",
            Self::Pods => "pods",
            Self::Misc => "misc",
        }
    }
}

/// A cgroup that is not a pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupSubject {
    /// Its path below the root of a hierarchy, such as `/kubepods/burstable`.
    pub path: String,
    /// What it is in the summary.
    pub system_container: Option<SystemContainer>,
    /// When it was started, in nanoseconds since the epoch; 0 if unknown.
    pub started_at: i64,
}

/// A pod.
#[derive(Clone, Debug)]
pub struct PodSubject {
    /// Its spec.
    pub pod: Arc<Pod>,
    /// The path of its cgroup below the root of a hierarchy; `None` without one.
    pub cgroup: Option<String>,
    /// Its sandboxes and containers in the runtime.
    pub status: Arc<PodStatus>,
}

impl PodSubject {
    /// Its running containers.
    pub(crate) fn running(&self) -> impl Iterator<Item = &ContainerStatus> {
        let all = self.status.containers.iter();
        all.filter(|container| container.state == ContainerState::Running)
    }
}

/// Lists pods and cgroups for a collection.
pub trait Subjects: fmt::Debug + Send + Sync {
    /// The pods of the node.
    fn pods(&self) -> Vec<PodSubject>;

    /// The cgroups beside those of pods; briefly blocking.
    fn cgroups(&self) -> Vec<CgroupSubject>;
}
