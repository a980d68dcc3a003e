//! The measured values. Times are nanoseconds since the epoch, sizes are bytes.

use std::{collections::HashMap, sync::Arc};

use cgroup_stats::{
    CpuLimits, CpuTimes, Descriptors, DeviceIo, DiskStats, Interface, Memory, MemoryEvents,
    MemoryLimits, Pressure, Swap,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kubelet_cri_client::pod_status::ContainerStatus;
use kubelet_pod_spec::identity::PodUid;

use crate::{
    file_systems::{FileSystem, ImageFileSystems, WritableLayer},
    subjects::SystemContainer,
    ulimits::SoftLimit,
};

/// What a cgroup uses. What the kernel or the runtime does not report is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU.
    pub cpu: Option<CpuUsage>,
    /// Memory.
    pub memory: Option<MemoryUsage>,
    /// Swap.
    pub swap: Option<Swap>,
    /// The pressure on disk I/O.
    pub io_pressure: Option<Pressure>,
    /// What only [`Depth::Everything`](crate::Depth::Everything) measures.
    pub details: Option<Arc<Details>>,
}

/// CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// When it was read.
    pub at: i64,
    /// Nanoseconds since the start, across all cores.
    pub total: u64,
    /// The average since an earlier read, in billionths of a core; `None` at the first read.
    pub nano_cores: Option<u64>,
    /// The pressure on the CPUs.
    pub pressure: Option<Pressure>,
}

/// Memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MemoryUsage {
    /// When it was read.
    pub at: i64,
    /// The limit without the working set; `None` without a limit.
    pub available: Option<u64>,
    /// All charged memory.
    pub usage: Option<u64>,
    /// The usage without page cache that was not used recently.
    pub working_set: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// Page faults since the start.
    pub page_faults: Option<u64>,
    /// Page faults since the start that required disk I/O.
    pub major_page_faults: Option<u64>,
    /// The pressure on memory.
    pub pressure: Option<Pressure>,
}

impl MemoryUsage {
    pub(crate) fn new(at: i64, memory: &Memory) -> Self {
        Self {
            at,
            available: memory.available(),
            usage: Some(memory.usage),
            working_set: Some(memory.working_set()),
            rss: Some(memory.rss),
            page_faults: Some(memory.page_faults),
            major_page_faults: Some(memory.major_page_faults),
            pressure: None,
        }
    }
}

/// Further values of a cgroup, which few pages show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Details {
    /// User and system CPU time, and throttling.
    pub cpu_times: CpuTimes,
    /// The kinds of memory.
    pub memory: Memory,
    /// Peaks and failures.
    pub memory_events: MemoryEvents,
    /// Processes and threads.
    pub tasks: Tasks,
    /// Disk I/O by the path of the device.
    pub io: Vec<(String, DeviceIo)>,
    /// The share of the CPUs.
    pub cpu_limits: Option<CpuLimits>,
    /// The limits on memory.
    pub memory_limits: MemoryLimits,
}

/// A cgroup's tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tasks {
    /// The processes in the cgroup itself.
    pub processes: Option<u64>,
    /// The threads, including cgroups below.
    pub threads: Option<u64>,
    /// The limit on threads.
    pub threads_max: Option<u64>,
    /// The open files of its processes; `None` if it has too many of them.
    pub descriptors: Option<Descriptors>,
    /// How many files its first process may open.
    pub max_open_files: Option<SoftLimit>,
}

/// A cgroup that is not a pod's.
#[derive(Clone, Debug)]
pub struct CgroupStats {
    /// Its path below the root of a hierarchy.
    pub path: String,
    /// What it is in the summary.
    pub system_container: Option<SystemContainer>,
    /// When it was started, in nanoseconds since the epoch; 0 if unknown.
    pub started_at: i64,
    /// What it uses.
    pub usage: Usage,
}

/// A container that is running.
#[derive(Clone, Debug)]
pub struct ContainerStats {
    /// ID in the runtime.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// The image that it was created from.
    pub image: String,
    /// Time of start; 0 if unknown.
    pub started_at: i64,
    /// The path of its cgroup below the root of a hierarchy; empty if it was not found.
    pub cgroup: String,
    /// What it uses.
    pub usage: Usage,
    /// What its writable layer uses; `None` if the runtime does not measure it.
    pub writable_layer: Option<WritableLayer>,
}

impl ContainerStats {
    pub(crate) fn unmeasured(container: &ContainerStatus) -> Self {
        Self {
            id: container.id.clone(),
            name: container.name.clone(),
            image: container.image.clone(),
            started_at: container.started_at,
            cgroup: String::new(),
            usage: Usage::default(),
            writable_layer: None,
        }
    }
}

/// A pod with a sandbox.
#[derive(Clone, Debug)]
pub struct PodStats {
    /// The pod.
    pub pod: Arc<Pod>,
    /// Its sandbox's ID.
    pub sandbox_id: String,
    /// When its sandbox was created.
    pub started_at: i64,
    /// The path of its cgroup below the root of a hierarchy; empty without one.
    pub cgroup: String,
    /// What it uses.
    pub usage: Usage,
    /// When its interfaces were read.
    pub interfaces_at: i64,
    /// Its network interfaces without loopback, the default one first; empty on the host network.
    pub interfaces: Vec<Interface>,
    /// Its processes.
    pub processes: Option<u64>,
    /// Its running containers.
    pub containers: Vec<ContainerStats>,
}

impl PodStats {
    /// Its UID.
    pub(crate) fn uid(&self) -> PodUid {
        PodUid::of(&self.pod)
    }
}

/// What the node uses as a whole.
#[derive(Clone, Debug, Default)]
pub struct NodeUsage {
    /// When it was read.
    pub at: Timestamp,
    /// When the machine was started.
    pub booted: Timestamp,
    /// What all processes and the kernel use. The memory's limit is the machine's memory.
    pub usage: Usage,
    /// The network interfaces without loopback.
    pub interfaces: Vec<Interface>,
    /// The disks that were used since the start, by the path of their device.
    pub disks: HashMap<String, DiskStats>,
    /// The interface of the default route.
    pub default_interface: Option<String>,
    /// The limit on process IDs.
    pub most_processes: u64,
    /// Threads.
    pub processes: u64,
}

/// What the node uses.
#[derive(Clone, Debug, Default)]
pub struct NodeStats {
    /// The node as a whole.
    pub node: NodeUsage,
    /// The file system of the kubelet's root directory.
    pub file_system: FileSystem,
    /// The file systems of images and containers; `None` if they were not read.
    pub images: Option<ImageFileSystems>,
    /// Cgroups beside those of pods.
    pub cgroups: Vec<CgroupStats>,
    /// Pods by namespace and name.
    pub pods: Vec<PodStats>,
    /// Why the runtime's own values are missing.
    pub runtime_error: Option<String>,
}
