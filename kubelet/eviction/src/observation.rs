//! What is observed of the node.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kubelet_pod_spec::quantity::NANOS;
use kubelet_stats::{FileSystem, NodeStats, SystemContainer};

use crate::signal::Signal;

/// The state of a signal, in bytes, inodes or process IDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// What is available.
    pub available: u64,
    /// All there is.
    pub capacity: u64,
    /// When it was measured.
    pub at: Timestamp,
}

impl Observation {
    pub(crate) fn capacity_in_billionths(&self) -> i128 {
        i128::from(self.capacity) * NANOS
    }
}

/// Which file systems the node has for images and writable layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Images and writable layers are on the kubelet's file system.
    #[default]
    Single,
    /// Images and writable layers have a file system.
    ImagesApart,
    /// Images have a file system; writable layers are on the kubelet's.
    OnlyImagesApart,
}

/// What was observed of the node at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The signals that could be observed.
    pub signals: BTreeMap<Signal, Observation>,
    /// The node's file systems; `None` if those of the runtime are not known.
    pub layout: Option<Layout>,
}

impl Observed {
    /// The signals of measured values.
    pub fn new(stats: &NodeStats) -> Self {
        let mut signals = BTreeMap::new();
        let node = &stats.node;
        let memory = node.usage.memory;
        let pods = stats.cgroups.iter().find(|cgroup| {
            let kind = cgroup.system_container;
            kind == Some(SystemContainer::Pods)
        });
        let of_pods = pods.and_then(|pods| pods.usage.memory);
        for (signal, memory) in [
            (Signal::MemoryAvailable, memory),
            (Signal::AllocatableMemoryAvailable, of_pods),
        ] {
            if let Some(memory) = memory
                && let (Some(available), Some(working_set)) = (memory.available, memory.working_set)
            {
                let observation = Observation {
                    available,
                    capacity: available.saturating_add(working_set),
                    at: Timestamp::from_nanosecond(memory.at.into()).unwrap_or_default(),
                };
                signals.insert(signal, observation);
            }
        }
        let file_system = Some(&stats.file_system);
        let images = stats.images.as_ref();
        for (bytes, inodes, found) in [
            (
                Signal::NodeFsAvailable,
                Signal::NodeFsInodesFree,
                file_system,
            ),
            (
                Signal::ImageFsAvailable,
                Signal::ImageFsInodesFree,
                images.map(|images| &images.images),
            ),
            (
                Signal::ContainerFsAvailable,
                Signal::ContainerFsInodesFree,
                images.map(|images| &images.containers),
            ),
        ] {
            let Some(found) = found else { continue };
            for (signal, available, capacity) in [
                (bytes, found.available, found.capacity),
                (inodes, found.inodes_free, found.inodes),
            ] {
                // Some file systems have no fixed number of inodes, and report zero.
                if let (Some(available), Some(capacity @ 1..)) = (available, capacity) {
                    let observation = Observation {
                        available,
                        capacity,
                        at: found.at,
                    };
                    signals.insert(signal, observation);
                }
            }
        }
        if node.most_processes > 0 {
            let observation = Observation {
                available: node.most_processes.saturating_sub(node.processes),
                capacity: node.most_processes,
                at: node.at,
            };
            signals.insert(Signal::PidAvailable, observation);
        }
        Self {
            signals,
            layout: images
                .map(|images| layout(&stats.file_system, &images.images, &images.containers)),
        }
    }
}

/// Compares the devices of file systems. Writable layers that are apart from both count as being
/// with the images, as upstream.
fn layout(node: &FileSystem, images: &FileSystem, containers: &FileSystem) -> Layout {
    if images.device.is_none() || images.device == node.device {
        return Layout::Single;
    }
    if containers.device == node.device {
        Layout::OnlyImagesApart
    } else {
        Layout::ImagesApart
    }
}
