//! Metrics of sandboxes and containers.

use std::{fs, os::unix::fs::MetadataExt as _};

use cgroup_stats::{Cgroup, Descriptors, Direction, Resource};
use cri_proto::runtime::v1::{ContainerMetrics, Metric, PodSandboxMetrics};

use super::{
    StatsCollector,
    convert::value,
    families::{self as family, BASE_LABELS, Family},
};
use crate::{
    clock::now,
    model::{Container, Sandbox, Snapshot},
    naming,
};

const NANOSECONDS: u64 = 1_000_000_000;
/// The container name of the sandbox itself.
const SANDBOX_CONTAINER: &str = "POD";
/// The kernel's defaults, which the engine reports as 0.
const DEFAULT_CPU_PERIOD: i64 = 100_000;
const DEFAULT_CPU_SHARES: i64 = 1024;

/// Metrics with the same base labels.
struct MetricsBuilder {
    base: [String; BASE_LABELS],
    timestamp: i64,
    all: Vec<Metric>,
}

impl MetricsBuilder {
    fn new(base: [&str; BASE_LABELS]) -> Self {
        Self {
            base: base.map(str::to_owned),
            timestamp: now(),
            all: Vec::new(),
        }
    }

    fn add<const N: usize>(&mut self, family: &Family<N>, labels: [&str; N], number: u64) {
        let labels = labels.into_iter().map(str::to_owned);
        self.all.push(Metric {
            name: family.name.to_owned(),
            timestamp: self.timestamp,
            metric_type: family.kind.into(),
            label_values: self.base.iter().cloned().chain(labels).collect(),
            value: value(number),
        });
    }

    fn add_known(&mut self, family: &Family<0>, number: Option<u64>) {
        if let Some(number) = number {
            self.add(family, [], number);
        }
    }
}

impl StatsCollector {
    /// The metrics of a ready sandbox and of its running containers.
    pub fn pod_metrics(&mut self, snapshot: &Snapshot, sandbox: &Sandbox) -> PodSandboxMetrics {
        let pod = sandbox.status.metadata.clone().unwrap_or_default();
        let name = naming::sandbox_name(&pod).unwrap_or_default();
        let id = sandbox.id();
        let labels = [id, &name, "", SANDBOX_CONTAINER, &pod.name, &pod.namespace];
        let mut metrics = MetricsBuilder::new(labels);
        for interface in self.interfaces(sandbox) {
            let name = interface.name.as_str();
            let mut add = |families: [&Family<1>; 4], counters: Direction| {
                let counters = [
                    counters.bytes,
                    counters.packets,
                    counters.dropped,
                    counters.errors,
                ];
                for (family, counter) in families.into_iter().zip(counters) {
                    metrics.add(family, [name], counter);
                }
            };
            add(
                [
                    family::RECEIVE_BYTES,
                    family::RECEIVE_PACKETS,
                    family::RECEIVE_DROPPED,
                    family::RECEIVE_ERRORS,
                ],
                interface.receive,
            );
            add(
                [
                    family::TRANSMIT_BYTES,
                    family::TRANSMIT_PACKETS,
                    family::TRANSMIT_DROPPED,
                    family::TRANSMIT_ERRORS,
                ],
                interface.transmit,
            );
        }
        let containers = snapshot.containers_of(id);
        PodSandboxMetrics {
            pod_sandbox_id: id.to_owned(),
            metrics: metrics.all,
            container_metrics: containers
                .filter_map(|container| self.container_metrics(sandbox, container))
                .collect(),
        }
    }

    fn container_metrics(
        &mut self,
        sandbox: &Sandbox,
        container: &Container,
    ) -> Option<ContainerMetrics> {
        let id = container.id();
        let cgroup = self.stats.cgroups.find(id, container.pid)?;
        let pod = sandbox.status.metadata.clone().unwrap_or_default();
        let own = container.status.metadata.clone().unwrap_or_default();
        let name = naming::container_name(&pod, &own).unwrap_or_default();
        let image = container.status.image.as_ref().map_or("", |image| {
            let written = image.user_specified_image.as_str();
            if written.is_empty() {
                &image.image
            } else {
                written
            }
        });
        let mut metrics =
            MetricsBuilder::new([id, &name, image, &own.name, &pod.name, &pod.namespace]);
        metrics.add(family::LAST_SEEN, [], seconds_of(metrics.timestamp));
        metrics.add(
            family::START_TIME,
            [],
            seconds_of(container.status.started_at),
        );
        self.add_cpu(&cgroup, &mut metrics);
        self.add_memory(&cgroup, &mut metrics);
        self.add_pressure(&cgroup, &mut metrics);
        self.add_tasks(id, &cgroup, &mut metrics);
        self.add_io(&cgroup, &mut metrics);
        self.add_file_system(id, &mut metrics);
        add_spec(container, &mut metrics);
        Some(ContainerMetrics {
            container_id: id.to_owned(),
            metrics: metrics.all,
        })
    }

    fn add_cpu(&mut self, cgroup: &Cgroup, metrics: &mut MetricsBuilder) {
        let Some(times) = self.reader.cpu_times(cgroup, None, None) else {
            return;
        };
        metrics.add(family::CPU_USAGE, ["total"], times.total / NANOSECONDS);
        metrics.add(family::CPU_USER, [], times.user / NANOSECONDS);
        metrics.add(family::CPU_SYSTEM, [], times.system / NANOSECONDS);
        metrics.add(family::CPU_PERIODS, [], times.periods);
        metrics.add(family::CPU_THROTTLED_PERIODS, [], times.throttled_periods);
        metrics.add(family::CPU_THROTTLED, [], times.throttled / NANOSECONDS);
    }

    fn add_memory(&mut self, cgroup: &Cgroup, metrics: &mut MetricsBuilder) {
        let Some(memory) = self.reader.memory(cgroup, None) else {
            return;
        };
        let events = self.reader.memory_events(cgroup);
        for (family, number) in [
            (family::MEMORY_USAGE, memory.usage),
            (family::MEMORY_WORKING_SET, memory.working_set()),
            (family::MEMORY_RSS, memory.rss),
            (family::MEMORY_CACHE, memory.cache),
            (family::MEMORY_MAPPED_FILE, memory.mapped_file),
            (family::MEMORY_ACTIVE_FILE, memory.active_file),
            (family::MEMORY_INACTIVE_FILE, memory.inactive_file),
        ] {
            metrics.add(family, [], number);
        }
        metrics.add_known(family::MEMORY_SWAP, memory.swap.map(|swap| swap.usage));
        metrics.add_known(family::MEMORY_KERNEL, events.kernel.or(memory.kernel));
        metrics.add_known(family::MEMORY_MAX_USAGE, events.max_usage);
        metrics.add_known(family::MEMORY_FAILCNT, events.failures);
        metrics.add_known(family::OOM_EVENTS, events.oom_kills);
        for (kind, number) in [
            ("pgfault", memory.page_faults),
            ("pgmajfault", memory.major_page_faults),
        ] {
            // The kernel's counters include cgroups below, but a container rarely has any.
            for scope in ["container", "hierarchy"] {
                metrics.add(family::MEMORY_FAILURES, [kind, scope], number);
            }
        }
    }

    fn add_pressure(&mut self, cgroup: &Cgroup, metrics: &mut MetricsBuilder) {
        for (resource, waiting, stalled) in [
            (
                Resource::Cpu,
                family::PRESSURE_CPU_WAITING,
                family::PRESSURE_CPU_STALLED,
            ),
            (
                Resource::Memory,
                family::PRESSURE_MEMORY_WAITING,
                family::PRESSURE_MEMORY_STALLED,
            ),
            (
                Resource::Io,
                family::PRESSURE_IO_WAITING,
                family::PRESSURE_IO_STALLED,
            ),
        ] {
            if let Some(stats) = self.reader.pressure(cgroup, resource) {
                metrics.add_known(waiting, stats.some.map(|psi| psi.total / NANOSECONDS));
                metrics.add_known(stalled, stats.full.map(|psi| psi.total / NANOSECONDS));
            }
        }
    }

    fn add_tasks(&mut self, id: &str, cgroup: &Cgroup, metrics: &mut MetricsBuilder) {
        let tasks = self.reader.tasks(cgroup);
        if let Some(processes) = &tasks.processes {
            metrics.add(family::PROCESSES, [], processes.len() as u64);
            let known = &self.stats.processes;
            let opened = processes
                .iter()
                .filter_map(|pid| known.open(id, (*pid).into()).ok()?.open("fd").ok());
            let open = Descriptors::total(opened);
            metrics.add_known(family::FILE_DESCRIPTORS, open.map(|open| open.all));
            metrics.add_known(family::SOCKETS, open.map(|open| open.sockets));
        }
        if let Some(threads) = tasks.threads {
            metrics.add(family::THREADS, [], threads);
            let max = self.reader.threads_max(cgroup).unwrap_or_default();
            metrics.add(family::THREADS_MAX, [], max);
        }
    }

    fn add_io(&mut self, cgroup: &Cgroup, metrics: &mut MetricsBuilder) {
        for io in self.reader.io(cgroup) {
            let device = self.devices.path(&io.device);
            for (family, number) in [
                (family::FS_READ_BYTES, io.read_bytes),
                (family::FS_READS, io.reads),
                (family::FS_WRITE_BYTES, io.write_bytes),
                (family::FS_WRITES, io.writes),
            ] {
                metrics.add(family, [device], number);
            }
            let (major, minor) = io.device.split_once(':').unwrap_or_default();
            for (operation, number) in [("Read", io.read_bytes), ("Write", io.write_bytes)] {
                let labels = [device, major, minor, operation];
                metrics.add(family::BLKIO_USAGE, labels, number);
            }
        }
    }

    fn add_file_system(&mut self, id: &str, metrics: &mut MetricsBuilder) {
        let root = self.root_dir.as_str();
        let (Ok(stat), Ok(metadata)) = (rustix::fs::statvfs(root), fs::metadata(root)) else {
            return;
        };
        let number = metadata.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = self.devices.path(&format!("{major}:{minor}"));
        let size = stat.f_blocks.saturating_mul(stat.f_frsize);
        metrics.add(family::FS_LIMIT, [device], size);
        metrics.add(family::FS_INODES, [device], stat.f_files);
        metrics.add(family::FS_INODES_FREE, [device], stat.f_ffree);
        if let Some(layer) = self.stats.layers.of(id) {
            metrics.add(family::FS_USAGE, [device], layer.bytes);
        }
    }
}

fn add_spec(container: &Container, metrics: &mut MetricsBuilder) {
    let resources = container.status.resources.as_ref();
    let Some(linux) = resources.and_then(|resources| resources.linux.as_ref()) else {
        return;
    };
    let or = |number: i64, default: i64| if number == 0 { default } else { number };
    let positive = |number: i64| u64::try_from(number).unwrap_or_default();
    for (family, number) in [
        (
            family::SPEC_CPU_PERIOD,
            or(linux.cpu_period, DEFAULT_CPU_PERIOD),
        ),
        (
            family::SPEC_CPU_SHARES,
            or(linux.cpu_shares, DEFAULT_CPU_SHARES),
        ),
        (family::SPEC_MEMORY_LIMIT, linux.memory_limit_in_bytes),
        (family::SPEC_SWAP_LIMIT, linux.memory_swap_limit_in_bytes),
    ] {
        metrics.add(family, [], positive(number));
    }
    if linux.cpu_quota > 0 {
        metrics.add(family::SPEC_CPU_QUOTA, [], positive(linux.cpu_quota));
    }
}

fn seconds_of(nanoseconds: i64) -> u64 {
    u64::try_from(nanoseconds).unwrap_or_default() / NANOSECONDS
}
