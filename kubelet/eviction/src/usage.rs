//! What pods use of the resources that they may be evicted for.

use std::collections::{BTreeMap, HashMap};

use kubelet_pod_spec::identity::PodUid;
use kubelet_resource_analyzer::{FileUsage, PodUsage as MeasuredFiles, Usages};
use kubelet_stats::{NodeStats, PodStats};

/// What pods use. A pod that was not measured is missing.
pub type PodUsages = HashMap<PodUid, PodUsage>;

/// What a pod uses. What was not measured is `None`, or missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// Bytes of memory in the working set.
    pub memory: Option<u64>,
    /// Processes.
    pub processes: Option<u64>,
    /// Its running containers, by name.
    pub containers: BTreeMap<String, ContainerUsage>,
    /// Volumes on the node's disk that exist as long as the pod, by name.
    pub local_volumes: BTreeMap<String, FileUsage>,
    /// Volumes of memory (`emptyDir`), by name.
    pub memory_volumes: BTreeMap<String, FileUsage>,
    /// The pod's own logs, and its hosts file.
    pub files: FileUsage,
}

/// What a container uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerUsage {
    /// Bytes of memory in the working set.
    pub memory: Option<u64>,
    /// The writable layer.
    pub layer: Option<FileUsage>,
    /// The logs.
    pub logs: Option<FileUsage>,
}

impl PodUsage {
    /// Joins what the cgroups, the runtime and the file systems report.
    fn new(stats: Option<&PodStats>, files: Option<&MeasuredFiles>) -> Self {
        let mut usage = Self::default();
        if let Some(stats) = stats {
            usage.memory = stats.usage.memory.and_then(|memory| memory.working_set);
            usage.processes = stats.processes;
            for container in &stats.containers {
                let layer = container.writable_layer.as_ref();
                let of_container = ContainerUsage {
                    memory: container.usage.memory.and_then(|it| it.working_set),
                    layer: layer.and_then(|layer| {
                        Some(FileUsage {
                            bytes: layer.used?,
                            inodes: layer.inodes_used.unwrap_or_default(),
                        })
                    }),
                    logs: None,
                };
                usage
                    .containers
                    .insert(container.name.clone(), of_container);
            }
        }
        let Some(files) = files else {
            return usage;
        };
        for (name, volume) in &files.volumes {
            let used = FileUsage {
                bytes: volume.bytes.used,
                inodes: volume.inodes.used,
            };
            let of_kind = match volume.is_local_ephemeral {
                true => &mut usage.local_volumes,
                false => &mut usage.memory_volumes,
            };
            of_kind.insert(name.clone(), used);
        }
        if let Some(files) = &files.files {
            for (name, logs) in &files.container_logs {
                let container = usage.containers.entry(name.clone()).or_default();
                container.logs = Some(*logs);
            }
            usage.files = sum([files.pod_logs].into_iter().chain(files.etc_hosts));
        }
        usage
    }

    /// All that counts as the pod's `ephemeral-storage`.
    pub(crate) fn ephemeral_storage(&self) -> FileUsage {
        let containers = self.containers.values();
        let of_containers = containers.flat_map(|it| it.layer.into_iter().chain(it.logs));
        let volumes = self.local_volumes.values().copied();
        sum(of_containers.chain(volumes).chain([self.files]))
    }

    /// The usage of a volume.
    pub(crate) fn volume(&self, name: &str) -> Option<FileUsage> {
        let found = self.local_volumes.get(name);
        found.or_else(|| self.memory_volumes.get(name)).copied()
    }
}

pub(crate) fn sum(files: impl IntoIterator<Item = FileUsage>) -> FileUsage {
    let mut total = FileUsage::default();
    for one in files {
        total.bytes = total.bytes.saturating_add(one.bytes);
        total.inodes = total.inodes.saturating_add(one.inodes);
    }
    total
}

/// The usage of all pods. Without `stats`, only volumes, logs and files are known.
pub fn pod_usages(stats: Option<&NodeStats>, files: &Usages) -> PodUsages {
    let mut usages = PodUsages::new();
    for pod in stats.into_iter().flat_map(|stats| &stats.pods) {
        let uid = PodUid::of(&pod.pod);
        let files = files.get(&uid).map(|files| &**files);
        usages.insert(uid, PodUsage::new(Some(pod), files));
    }
    for (uid, files) in files {
        if !usages.contains_key(uid) {
            usages.insert(uid.clone(), PodUsage::new(None, Some(files)));
        }
    }
    usages
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubelet_resource_analyzer::{Amounts, PodFiles, VolumeUsage};
    use kubelet_stats::{ContainerStats, MemoryUsage, Usage, WritableLayer};
    use serde_json::json;

    use super::*;

    fn memory(working_set: u64) -> Usage {
        Usage {
            memory: Some(MemoryUsage {
                working_set: Some(working_set),
                ..MemoryUsage::default()
            }),
            ..Usage::default()
        }
    }

    #[test]
    fn all_sources_are_joined() {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}});
        let stats = NodeStats {
            pods: vec![PodStats {
                pod: Arc::new(serde_json::from_value(pod).unwrap()),
                sandbox_id: String::new(),
                started_at: 0,
                cgroup: String::new(),
                usage: memory(100),
                interfaces_at: 0,
                interfaces: Vec::new(),
                processes: Some(3),
                containers: vec![ContainerStats {
                    id: "id".to_owned(),
                    name: "c".to_owned(),
                    image: String::new(),
                    started_at: 0,
                    cgroup: String::new(),
                    usage: memory(90),
                    writable_layer: Some(WritableLayer {
                        at: 0,
                        used: Some(7),
                        inodes_used: Some(2),
                    }),
                }],
            }],
            ..NodeStats::default()
        };
        let files = |bytes, inodes| FileUsage { bytes, inodes };
        let volume = |used, is_local_ephemeral| VolumeUsage {
            bytes: Amounts {
                used,
                ..Amounts::default()
            },
            is_local_ephemeral,
            ..VolumeUsage::default()
        };
        let measured = MeasuredFiles {
            volumes: [
                ("disk".to_owned(), volume(50, true)),
                ("memory".to_owned(), volume(60, false)),
            ]
            .into(),
            files: Some(PodFiles {
                container_logs: [("c".to_owned(), files(11, 1))].into(),
                pod_logs: files(5, 1),
                etc_hosts: Some(files(4, 1)),
                ..PodFiles::default()
            }),
            ..MeasuredFiles::default()
        };
        let uid = PodUid::from("u");
        let only_files = PodUid::from("only files");
        let measured = Arc::new(measured);
        let usages = [
            (uid.clone(), Arc::clone(&measured)),
            (only_files.clone(), measured),
        ];
        let found = pod_usages(Some(&stats), &usages.into());
        let usage = &found[&uid];
        assert_eq!((usage.memory, usage.processes), (Some(100), Some(3)));
        assert_eq!(usage.containers["c"].memory, Some(90));
        // Layer, logs, the volume on the disk, the pod's logs and the hosts file.
        assert_eq!(
            usage.ephemeral_storage(),
            files(7 + 11 + 50 + 5 + 4, 2 + 1 + 2)
        );
        assert_eq!(usage.volume("memory"), Some(files(60, 0)));
        assert_eq!(usage.volume("none"), None);
        let usage = &found[&only_files];
        assert_eq!((usage.memory, usage.containers["c"].layer), (None, None));
        assert_eq!(usage.ephemeral_storage().bytes, 11 + 50 + 5 + 4);
    }
}
