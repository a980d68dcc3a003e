//! The JSON of cAdvisor's `MachineInfo` (`info/v1/machine.go`).

use std::collections::BTreeMap;

use serde::Serialize;

/// The hardware of a machine, and its identity.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct MachineInfo {
    /// When it was read.
    pub(crate) timestamp: String,
    pub(crate) vendor_id: String,
    /// Online CPUs.
    pub(crate) num_cores: usize,
    pub(crate) num_physical_cores: usize,
    pub(crate) num_sockets: usize,
    /// Books and drawers are levels above sockets on IBM Z.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_books: usize,
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) num_drawers: usize,
    pub(crate) cpu_frequency_khz: u64,
    /// In bytes, as all sizes without another unit.
    pub(crate) memory_capacity: u64,
    pub(crate) swap_capacity: u64,
    /// Memory modules by type, such as `Unbuffered-DDR4`; empty without an EDAC driver.
    pub(crate) memory_by_type: BTreeMap<String, MemoryModules>,
    pub(crate) nvm: NonVolatileMemory,
    pub(crate) hugepages: Vec<HugePages>,
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
    pub(crate) filesystems: Vec<FileSystem>,
    /// By `major:minor`.
    pub(crate) disk_map: BTreeMap<String, Disk>,
    pub(crate) network_devices: Vec<NetworkDevice>,
    pub(crate) topology: Vec<Node>,
    pub(crate) cloud_provider: &'static str,
    pub(crate) instance_type: &'static str,
    pub(crate) instance_id: &'static str,
    /// Not part of the format.
    #[serde(skip)]
    pub(crate) kernel_version: String,
    #[serde(skip)]
    pub(crate) os_version: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryModules {
    pub(crate) capacity: u64,
    pub(crate) dimm_count: u64,
}

/// Zero: as in upstream's builds, which lack the library that reads it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct NonVolatileMemory {
    pub(crate) memory_mode_capacity: u64,
    // The space is cAdvisor's.
    #[serde(rename = "app direct_mode_capacity")]
    pub(crate) app_direct_mode_capacity: u64,
    /// In watts.
    pub(crate) avg_power_budget: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct HugePages {
    /// In KiB.
    pub(crate) page_size: u64,
    pub(crate) num_pages: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct FileSystem {
    pub(crate) device: String,
    pub(crate) capacity: u64,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) inodes: u64,
    pub(crate) has_inodes: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) major: u64,
    pub(crate) minor: u64,
    pub(crate) size: u64,
    pub(crate) scheduler: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NetworkDevice {
    pub(crate) name: String,
    pub(crate) mac_address: String,
    /// In Mbit/s; 0 if unknown.
    pub(crate) speed: i64,
    pub(crate) mtu: i64,
}

/// A NUMA node, or a socket if the kernel lists no nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Node {
    pub(crate) node_id: u32,
    pub(crate) memory: u64,
    pub(crate) hugepages: Vec<HugePages>,
    pub(crate) cores: Vec<Core>,
    /// Caches of all CPUs of the node.
    pub(crate) caches: Vec<Cache>,
    /// Relative distances to each node; 10 to itself.
    pub(crate) distances: Vec<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Core {
    /// Unique in its socket.
    pub(crate) core_id: u32,
    pub(crate) thread_ids: Vec<u32>,
    /// Caches of this core alone.
    pub(crate) caches: Vec<Cache>,
    /// Caches of level 3 and above that some cores of the node share.
    pub(crate) uncore_caches: Vec<Cache>,
    pub(crate) socket_id: u32,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) book_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) drawer_id: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Cache {
    pub(crate) id: u32,
    pub(crate) size: u64,
    /// `Data`, `Instruction` or `Unified`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) level: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}
