//! Collects the resource usage of sandboxes and containers.

use std::sync::Arc;

use cgroup_stats::{Cgroup, DeviceNames, Interface, KernelFileReader, Resource};
use cri_proto::runtime::v1::{
    ContainerStats, CpuUsage, IoUsage, LinuxPodSandboxStats, MemoryUsage, NamespaceMode,
    PodSandboxState, PodSandboxStats, ProcessUsage, SwapUsage, UInt64Value,
};
use tokio::time::Instant;

use super::{
    Stats,
    convert::{
        container_attributes, filesystem_usage, memory_usage, psi, sandbox_attributes, swap_usage,
        value,
    },
    network,
};
use crate::{
    clock::now,
    model::{Container, Sandbox, Snapshot},
};

/// Collects the current usage; its reads may block.
#[derive(Debug)]
pub struct StatsCollector {
    pub(super) stats: Arc<Stats>,
    pub(super) root_dir: String,
    pub(super) reader: KernelFileReader,
    pub(super) devices: DeviceNames,
}

/// The usage of a cgroup; empty if it is gone.
#[derive(Debug, Default)]
struct Usage {
    cpu: Option<CpuUsage>,
    memory: Option<MemoryUsage>,
    swap: Option<SwapUsage>,
    io: Option<IoUsage>,
}

impl StatsCollector {
    pub(super) fn new(stats: Arc<Stats>, root_dir: String) -> Self {
        Self {
            stats,
            root_dir,
            reader: KernelFileReader::default(),
            devices: DeviceNames::default(),
        }
    }

    /// The usage of a container. One that is not running has only its writable layer.
    pub fn container(&mut self, container: &Container) -> ContainerStats {
        let id = container.id();
        let mut usage = match self.stats.cgroups.find(id, container.pid) {
            Some(cgroup) => self.usage(&cgroup),
            None => Usage::default(),
        };
        self.add_rate(id, &mut usage.cpu);
        let layer = self.stats.layers.of(id);
        ContainerStats {
            attributes: Some(container_attributes(container)),
            cpu: usage.cpu,
            memory: usage.memory,
            writable_layer: layer.map(|layer| filesystem_usage(&layer, &self.root_dir)),
            swap: usage.swap,
            io: usage.io,
        }
    }

    /// The usage of a sandbox and its containers. One that is not ready has none of its own.
    ///
    /// With a cgroup parent, the values are those of that cgroup, which is the pod's. Otherwise
    /// they are sums over the containers and the sandbox's own process; pressure and limits cannot
    /// be summed.
    pub fn pod(&mut self, snapshot: &Snapshot, sandbox: &Sandbox) -> PodSandboxStats {
        let id = sandbox.id();
        let members: Vec<_> = snapshot.containers_of(id).collect();
        let containers: Vec<_> = members.iter().map(|c| self.container(c)).collect();
        let mut linux = LinuxPodSandboxStats {
            containers,
            ..LinuxPodSandboxStats::default()
        };
        if let Some(own) = self.stats.cgroups.find(id, sandbox.pid) {
            let (usage, threads) = if sandbox.cgroup_parent.is_empty() {
                let mut usage = self.usage(&own);
                usage.io = None;
                if let Some(cpu) = &mut usage.cpu {
                    cpu.psi = None;
                }
                if let Some(memory) = &mut usage.memory {
                    (memory.psi, memory.available_bytes) = (None, None);
                }
                for container in &linux.containers {
                    add(&mut usage, container);
                }
                let groups = members
                    .iter()
                    .filter_map(|c| self.stats.cgroups.find(c.id(), c.pid));
                let groups: Vec<_> = std::iter::once(own).chain(groups).collect();
                let threads = groups.iter().filter_map(|group| self.reader.threads(group));
                (usage, Some(threads.sum()))
            } else {
                let pod = own.parent();
                (self.usage(&pod), self.reader.threads(&pod))
            };
            linux.cpu = usage.cpu;
            linux.memory = usage.memory;
            linux.io = usage.io;
            self.add_rate(id, &mut linux.cpu);
            linux.process = threads.map(|threads| ProcessUsage {
                timestamp: now(),
                process_count: value(threads),
            });
            linux.network = network::usage(&self.interfaces(sandbox), now());
        }
        PodSandboxStats {
            attributes: Some(sandbox_attributes(sandbox)),
            linux: Some(linux),
            windows: None,
        }
    }

    /// The interfaces of a sandbox; empty with the host network, whose counters belong to the whole
    /// node.
    pub(super) fn interfaces(&mut self, sandbox: &Sandbox) -> Vec<Interface> {
        let namespaces = sandbox.status.linux.as_ref().and_then(|linux| {
            let namespaces = linux.namespaces.as_ref()?;
            namespaces.options.as_ref()
        });
        let on_node = namespaces.is_none_or(|options| options.network() == NamespaceMode::Node);
        if on_node || sandbox.status.state() != PodSandboxState::SandboxReady {
            return Vec::new();
        }
        let namespaces = &self.stats.namespaces;
        namespaces.interfaces(&mut self.reader, sandbox.id(), sandbox.pid)
    }

    fn usage(&mut self, cgroup: &Cgroup) -> Usage {
        let reader = &mut self.reader;
        let timestamp = now();
        let cpu = reader.cpu(cgroup, None).map(|used| CpuUsage {
            timestamp,
            usage_core_nano_seconds: value(used),
            usage_nano_cores: None,
            psi: reader.pressure(cgroup, Resource::Cpu).as_ref().map(psi),
        });
        let memory = reader.memory(cgroup, None);
        Usage {
            cpu,
            memory: memory.as_ref().map(|memory| {
                let pressure = reader.pressure(cgroup, Resource::Memory);
                memory_usage(memory, pressure.as_ref().map(psi), timestamp)
            }),
            swap: memory
                .and_then(|memory| memory.swap)
                .map(|swap| swap_usage(swap, timestamp)),
            io: reader
                .pressure(cgroup, Resource::Io)
                .map(|pressure| IoUsage {
                    timestamp,
                    psi: Some(psi(&pressure)),
                }),
        }
    }

    fn add_rate(&self, id: &str, cpu: &mut Option<CpuUsage>) {
        if let Some(cpu) = cpu
            && let Some(used) = cpu.usage_core_nano_seconds
        {
            let rate = self.stats.cpu_rates.observe(id, Instant::now(), used.value);
            cpu.usage_nano_cores = rate.and_then(value);
        }
    }
}

/// Adds a container's usage to its pod's.
fn add(pod: &mut Usage, container: &ContainerStats) {
    let sum = |to: &mut Option<_>, from: &Option<_>| {
        *to = add_values(to.take(), *from);
    };
    if let (Some(to), Some(from)) = (&mut pod.cpu, &container.cpu) {
        sum(
            &mut to.usage_core_nano_seconds,
            &from.usage_core_nano_seconds,
        );
    }
    if let (Some(to), Some(from)) = (&mut pod.memory, &container.memory) {
        sum(&mut to.working_set_bytes, &from.working_set_bytes);
        sum(&mut to.usage_bytes, &from.usage_bytes);
        sum(&mut to.rss_bytes, &from.rss_bytes);
        sum(&mut to.page_faults, &from.page_faults);
        sum(&mut to.major_page_faults, &from.major_page_faults);
    }
}

fn add_values(a: Option<UInt64Value>, b: Option<UInt64Value>) -> Option<UInt64Value> {
    let number = |v: Option<UInt64Value>| v.map_or(0, |v| v.value);
    value(number(a).saturating_add(number(b)))
}
