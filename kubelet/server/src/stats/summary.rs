//! The summary.

use kubelet_pod_spec::identity::{self, PodUid};
use kubelet_resource_analyzer::{Amounts, FileUsage, PodFiles, PodUsage, Usages, VolumeUsage};
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
    #[serde(rename = "volume", skip_serializing_if = "Vec::is_empty")]
    volumes: Vec<Volume>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    logs: Option<Fs>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    #[serde(flatten)]
    fs: Fs,
    name: String,
    #[serde(rename = "pvcRef", skip_serializing_if = "Option::is_none")]
    claim: Option<Claim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume_health_stats: Option<VolumeHealth>,
}

#[derive(Debug, Serialize)]
struct Claim {
    name: String,
    namespace: String,
}

#[derive(Debug, Serialize)]
struct VolumeHealth {
    abnormal: bool,
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
    pub(super) fn new(node_name: &str, stats: &NodeStats, usages: &Usages, depth: Depth) -> Self {
        Self {
            node: Node::new(node_name, stats, depth),
            pods: stats
                .pods
                .iter()
                .map(|pod| {
                    let usage = usages.get(&PodUid::of(&pod.pod));
                    Pod::new(pod, stats, usage.map(|usage| &**usage), depth)
                })
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
                maxpid: usage.most_processes,
                curproc: usage.processes,
            }),
        }
    }
}

impl Pod {
    fn new(pod: &PodStats, stats: &NodeStats, usage: Option<&PodUsage>, depth: Depth) -> Self {
        let everything = depth == Depth::Everything;
        let usage = usage.filter(|_| everything);
        let files = usage.and_then(|usage| usage.files.as_ref());
        let volumes = usage.into_iter().flat_map(|usage| &usage.volumes);
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
                .map(|container| Container::new(container, stats, files, depth))
                .collect(),
            measured: Measured::new(&pod.usage, depth),
            network: (everything && !pod.interfaces.is_empty())
                .then(|| Network::new(Time::of(pod.interfaces_at), &pod.interfaces, default)),
            volumes: volumes
                .map(|(name, usage)| Volume::new(name, usage))
                .collect(),
            ephemeral_storage: everything.then(|| ephemeral_storage(pod, stats, usage)),
            process_stats: pod
                .processes
                .filter(|_| everything)
                .map(|process_count| ProcessStats { process_count }),
        }
    }
}

/// What the pod uses of the node's disk: writable layers, logs, files of the kubelet, and volumes
/// that exist as long as the pod.
fn ephemeral_storage(pod: &PodStats, stats: &NodeStats, usage: Option<&PodUsage>) -> Fs {
    let mut time = Time(stats.file_system.at);
    let mut all = Used::default();
    let mut add = |at: Time, used: Used| {
        time = time.max(at);
        all.add(used);
    };
    let layers = pod
        .containers
        .iter()
        .filter_map(|it| it.writable_layer.as_ref());
    for layer in layers {
        let used = Used {
            bytes: layer.used,
            inodes: layer.inodes_used,
        };
        add(Time::of(layer.at), used);
    }
    let Some(usage) = usage else {
        return Fs::part(&stats.file_system, time, all);
    };
    if let Some(files) = &usage.files {
        let of_pod = files.etc_hosts.iter().chain([&files.pod_logs]);
        for found in files.container_logs.values().chain(of_pod) {
            add(Time(files.at), Used::from(*found));
        }
    }
    for volume in usage.volumes.values().filter(|it| it.is_local_ephemeral) {
        let used = Used {
            bytes: Some(volume.bytes.used),
            inodes: Some(volume.inodes.used),
        };
        add(Time(volume.at), used);
    }
    Fs::part(&stats.file_system, time, all)
}

impl From<FileUsage> for Used {
    fn from(usage: FileUsage) -> Self {
        Self {
            bytes: Some(usage.bytes),
            inodes: Some(usage.inodes),
        }
    }
}

impl Volume {
    fn new(name: &str, usage: &VolumeUsage) -> Self {
        let Amounts {
            total,
            available,
            used,
        } = usage.bytes;
        Self {
            fs: Fs {
                time: Time(usage.at),
                available_bytes: Some(available),
                capacity_bytes: Some(total),
                used_bytes: Some(used),
                inodes_free: Some(usage.inodes.available),
                inodes: Some(usage.inodes.total),
                inodes_used: Some(usage.inodes.used),
            },
            name: name.to_owned(),
            claim: usage.claim.as_ref().map(|claim| Claim {
                name: claim.name.clone(),
                namespace: claim.namespace.clone(),
            }),
            volume_health_stats: usage.is_abnormal.map(|abnormal| VolumeHealth { abnormal }),
        }
    }
}

impl Container {
    fn new(
        container: &ContainerStats,
        stats: &NodeStats,
        files: Option<&PodFiles>,
        depth: Depth,
    ) -> Self {
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
            logs: files.and_then(|files| {
                let used = files.container_logs.get(&container.name)?;
                Some(Fs::part(&stats.file_system, Time(files.at), (*used).into()))
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
        logs: None,
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
