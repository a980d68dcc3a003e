//! What the metrics are about.

use std::collections::HashSet;

use cgroup_stats::{DiskStats, Interface};
use kubelet_metrics::Labels;
use kubelet_pod_spec::identity;
use kubelet_stats::{FileSystem, NodeStats, PodStats, Usage};

/// One cgroup, or a sandbox.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) labels: Labels,
    /// When it was measured, in nanoseconds since the epoch.
    pub(super) at: i64,
    /// When it was started, in nanoseconds since the epoch; 0 if unknown.
    pub(super) started_at: i64,
    /// None for a sandbox.
    pub(super) usage: Option<&'a Usage>,
    pub(super) interfaces: &'a [Interface],
    pub(super) file_systems: Vec<FileSystemRow<'a>>,
}

/// A file system that a cgroup uses.
#[derive(Debug)]
pub(super) struct FileSystemRow<'a> {
    pub(super) file_system: &'a FileSystem,
    /// The bytes that it uses, if they are known.
    pub(super) used: Option<u64>,
    /// The inodes: all of them for the node, and those that a container uses.
    pub(super) inodes: Option<u64>,
    /// Inodes that are free, for the node only.
    pub(super) inodes_free: Option<u64>,
    /// The disk below it, for the node only.
    pub(super) disk: Option<&'a DiskStats>,
}

/// The values of cAdvisor's labels.
#[derive(Default)]
struct Names<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

impl Names<'_> {
    fn labels(&self) -> Labels {
        Labels::new(&[
            ("container", self.container),
            ("id", self.id),
            ("image", self.image),
            ("name", self.name),
            ("namespace", self.namespace),
            ("pod", self.pod),
        ])
    }
}

/// The node, its cgroups, and the pods.
pub(super) fn of(stats: &NodeStats) -> Vec<Row<'_>> {
    let mut rows = vec![root(stats)];
    // Daemons may share a cgroup, or be in the root.
    let mut ids = HashSet::from(["/"]);
    for cgroup in stats.cgroups.iter().filter(|it| ids.insert(&it.path)) {
        let names = Names {
            id: &cgroup.path,
            ..Names::default()
        };
        rows.push(Row {
            labels: names.labels(),
            at: at(&cgroup.usage),
            started_at: cgroup.started_at,
            usage: Some(&cgroup.usage),
            interfaces: &[],
            file_systems: Vec::new(),
        });
    }
    for pod in &stats.pods {
        add_pod(pod, stats, &mut rows);
    }
    rows
}

fn root<'a>(stats: &'a NodeStats) -> Row<'a> {
    let whole = |file_system: &'a FileSystem, used| FileSystemRow {
        file_system,
        used,
        inodes: file_system.inodes,
        inodes_free: file_system.inodes_free,
        disk: file_system
            .device
            .as_ref()
            .and_then(|device| stats.node.disks.get(device)),
    };
    let mut file_systems = vec![whole(&stats.file_system, stats.file_system.used)];
    if let Some(images) = &stats.images
        && images.images.device != stats.file_system.device
    {
        let of_images = &images.images;
        let used = of_images.capacity.zip(of_images.available);
        let used = used.map(|(capacity, available)| capacity.saturating_sub(available));
        file_systems.push(whole(of_images, used));
    }
    let names = Names {
        id: "/",
        ..Names::default()
    };
    Row {
        labels: names.labels(),
        at: at(&stats.node.usage),
        started_at: i64::try_from(stats.node.booted.as_nanosecond()).unwrap_or_default(),
        usage: Some(&stats.node.usage),
        interfaces: &stats.node.interfaces,
        file_systems,
    }
}

fn add_pod<'a>(pod: &'a PodStats, stats: &'a NodeStats, rows: &mut Vec<Row<'a>>) {
    let of_pod = Names {
        namespace: identity::namespace(&pod.pod),
        pod: identity::name(&pod.pod),
        ..Names::default()
    };
    rows.push(Row {
        labels: Names {
            id: &pod.cgroup,
            ..of_pod
        }
        .labels(),
        at: at(&pod.usage),
        started_at: pod.started_at,
        usage: Some(&pod.usage),
        interfaces: &[],
        file_systems: Vec::new(),
    });
    if !pod.interfaces.is_empty() {
        let id = format!("{}/{}", pod.cgroup, pod.sandbox_id);
        rows.push(Row {
            labels: Names {
                id: &id,
                name: &pod.sandbox_id,
                ..of_pod
            }
            .labels(),
            at: pod.interfaces_at,
            started_at: 0,
            usage: None,
            interfaces: &pod.interfaces,
            file_systems: Vec::new(),
        });
    }
    let layers = stats.images.as_ref().map(|images| &images.containers);
    for container in &pod.containers {
        let layer = container.writable_layer.as_ref();
        rows.push(Row {
            labels: Names {
                container: &container.name,
                id: &container.cgroup,
                image: &container.image,
                name: &container.id,
                ..of_pod
            }
            .labels(),
            at: at(&container.usage),
            started_at: container.started_at,
            usage: Some(&container.usage),
            interfaces: &[],
            file_systems: layers
                .map(|file_system| FileSystemRow {
                    file_system,
                    used: layer.and_then(|layer| layer.used),
                    inodes: layer.and_then(|layer| layer.inodes_used),
                    inodes_free: None,
                    disk: None,
                })
                .into_iter()
                .collect(),
        });
    }
}

fn at(usage: &Usage) -> i64 {
    let cpu = usage.cpu.map(|cpu| cpu.at);
    cpu.or(usage.memory.map(|memory| memory.at)).unwrap_or(0)
}
