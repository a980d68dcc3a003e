//! The summary.

use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_stats::{
    CgroupStats, ContainerStats, Depth, NodeStats, PodStats, SystemContainer, Usage,
};
use serde::Serialize;

use super::format::{Cpu, Fs, Io, Memory, Network, SwapUsage, Time, Used};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    node: Node,
    pods: Vec<Pod>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Node {
    node_name: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    system_containers: Vec<Container>,
    start_time: Time,
    #[serde(flatten)]
    measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fs: Option<Fs>,
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<Runtime>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rlimit: Option<Rlimit>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Runtime {
    image_fs: Fs,
    container_fs: Fs,
}

#[derive(Debug, Serialize)]
struct Rlimit {
    time: Time,
    maxpid: u64,
    curproc: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    pod_ref: PodRef,
    start_time: Time,
    containers: Vec<Container>,
    #[serde(flatten)]
    measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    #[serde(rename = "ephemeral-storage", skip_serializing_if = "Option::is_none")]
    ephemeral_storage: Option<Fs>,
    #[serde(rename = "process_stats", skip_serializing_if = "Option::is_none")]
    process_stats: Option<ProcessStats>,
}

#[derive(Debug, Serialize)]
struct PodRef {
    name: String,
    namespace: String,
    uid: String,
}

#[derive(Debug, Serialize)]
struct ProcessStats {
    process_count: u64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    name: String,
    start_time: Time,
    #[serde(flatten)]
    measured: Measured,
    #[serde(skip_serializing_if = "Option::is_none")]
    rootfs: Option<Fs>,
}

/// What pods and containers have in common.
#[derive(Debug, Serialize)]
struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    io: Option<Io>,
    #[serde(skip_serializing_if = "Option::is_none")]
    swap: Option<SwapUsage>,
}

impl Summary {
    pub(super) fn new(node_name: &str, stats: &NodeStats, depth: Depth) -> Self {
        Self {
            node: Node::new(node_name, stats, depth),
            pods: stats
                .pods
                .iter()
                .map(|pod| Pod::new(pod, stats, depth))
                .collect(),
        }
    }
}

impl Node {
    fn new(name: &str, stats: &NodeStats, depth: Depth) -> Self {
        let usage = &stats.node;
        let time = Time(usage.at);
        let everything = depth == Depth::Everything;
        Self {
            node_name: name.to_owned(),
            system_containers: stats
                .cgroups
                .iter()
                .filter_map(|cgroup| {
                    Some(system_container(cgroup.system_container?, cgroup, depth))
                })
                .collect(),
            start_time: Time(usage.booted),
            measured: Measured::new(&usage.usage, depth),
            network: everything
                .then(|| Network::new(time, &usage.interfaces, usage.default_interface.as_deref())),
            fs: everything.then(|| Fs::from(&stats.file_system)),
            runtime: stats
                .images
                .as_ref()
                .filter(|_| everything)
                .map(|images| Runtime {
                    image_fs: Fs::from(&images.images),
                    container_fs: Fs::from(&images.containers),
                }),
            rlimit: everything.then_some(Rlimit {
                time,
                maxpid: usage.pid_max,
                curproc: usage.processes,
            }),
        }
    }
}

impl Pod {
    fn new(pod: &PodStats, stats: &NodeStats, depth: Depth) -> Self {
        let everything = depth == Depth::Everything;
        let containers = pod.containers.iter();
        let default = pod.interfaces.first().map(|first| first.name.as_str());
        Self {
            pod_ref: PodRef {
                name: identity::name(&pod.pod).to_owned(),
                namespace: identity::namespace(&pod.pod).to_owned(),
                uid: PodUid::of(&pod.pod).to_string(),
            },
            start_time: Time::of(pod.started_at),
            containers: containers
                .map(|container| Container::new(container, stats, depth))
                .collect(),
            measured: Measured::new(&pod.usage, depth),
            network: (everything && !pod.interfaces.is_empty())
                .then(|| Network::new(Time::of(pod.interfaces_at), &pod.interfaces, default)),
            ephemeral_storage: everything.then(|| ephemeral_storage(pod, stats)),
            process_stats: pod
                .processes
                .filter(|_| everything)
                .map(|process_count| ProcessStats { process_count }),
        }
    }
}

/// What the pod uses of the node's disk.
fn ephemeral_storage(pod: &PodStats, stats: &NodeStats) -> Fs {
    let mut time = Time(stats.file_system.at);
    let mut used = Used::default();
    for layer in pod
        .containers
        .iter()
        .filter_map(|it| it.writable_layer.as_ref())
    {
        time = time.max(Time::of(layer.at));
        used.add(Used {
            bytes: layer.used,
            inodes: layer.inodes_used,
        });
    }
    Fs::part(&stats.file_system, time, used)
}

impl Container {
    fn new(container: &ContainerStats, stats: &NodeStats, depth: Depth) -> Self {
        let layer = container.writable_layer.as_ref();
        let layers = stats.images.as_ref().map(|images| &images.containers);
        let layers = layers.cloned().unwrap_or_default();
        Self {
            name: container.name.clone(),
            start_time: Time::of(container.started_at),
            measured: Measured::new(&container.usage, depth),
            rootfs: layer.filter(|_| depth == Depth::Everything).map(|layer| {
                let used = Used {
                    bytes: layer.used,
                    inodes: layer.inodes_used,
                };
                Fs::part(&layers, Time::of(layer.at), used)
            }),
        }
    }
}

fn system_container(kind: SystemContainer, cgroup: &CgroupStats, depth: Depth) -> Container {
    Container {
        name: kind.as_str().to_owned(),
        start_time: Time::of(cgroup.started_at),
        measured: Measured::new(&cgroup.usage, depth),
        rootfs: None,
    }
}

impl Measured {
    fn new(usage: &Usage, depth: Depth) -> Self {
        let everything = depth == Depth::Everything;
        let at = usage.memory.map_or(0, |memory| memory.at);
        let cpu = usage.cpu.map(|cpu| kubelet_stats::CpuUsage {
            pressure: cpu.pressure.filter(|_| everything),
            ..cpu
        });
        let memory = usage.memory.map(|memory| kubelet_stats::MemoryUsage {
            pressure: memory.pressure.filter(|_| everything),
            ..memory
        });
        Self {
            cpu: cpu.as_ref().map(Cpu::from),
            memory: memory.as_ref().map(Memory::from),
            io: usage
                .io_pressure
                .filter(|_| everything)
                .map(|pressure| Io::new(Time::of(at), &pressure)),
            swap: usage.swap.map(|swap| SwapUsage::new(Time::of(at), swap)),
        }
    }
}
