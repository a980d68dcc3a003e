//! The JSON of cAdvisor's `MachineInfo` (`info/v1/machine.go`).

use std::collections::BTreeMap;

use serde::Serialize;

/// The hardware of a machine, and its identity.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MachineInfo {
    /// When it was read.
    pub timestamp: String,
    /// The maker of the CPU, such as `GenuineIntel`.
    pub vendor_id: String,
    /// Online CPUs.
    pub num_cores: usize,
    /// Physical cores.
    pub num_physical_cores: usize,
    /// CPU sockets.
    pub num_sockets: usize,
    /// Books and drawers are levels above sockets on IBM Z.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_books: usize,
    /// A level above books.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_drawers: usize,
    /// The highest frequency of the first CPU in kHz; 0 if unknown.
    pub cpu_frequency_khz: u64,
    /// In bytes, as all sizes without another unit.
    pub memory_capacity: u64,
    /// Swap space.
    pub swap_capacity: u64,
    /// Memory modules by type, such as `Unbuffered-DDR4`; empty without an EDAC driver.
    pub memory_by_type: BTreeMap<String, MemoryModules>,
    /// Memory that keeps its content without power.
    pub nvm: NonVolatileMemory,
    /// Huge pages of each size.
    pub hugepages: Vec<HugePages>,
    /// Identifies the installation: `/etc/machine-id`.
    pub machine_id: String,
    /// Identifies the hardware.
    pub system_uuid: String,
    /// Identifies the boot.
    pub boot_id: String,
    /// Mounted file systems that have a size.
    pub filesystems: Vec<FileSystem>,
    /// By `major:minor`.
    pub disk_map: BTreeMap<String, Disk>,
    /// Physical network devices.
    pub network_devices: Vec<NetworkDevice>,
    /// NUMA nodes with their CPUs.
    pub topology: Vec<Node>,
    /// Always `Unknown`: the node object names the cloud provider.
    pub cloud_provider: &'static str,
    /// Always `Unknown`.
    pub instance_type: &'static str,
    /// Always `None`.
    pub instance_id: &'static str,
    /// The release of the kernel; not part of the format, as the next.
    #[serde(skip)]
    pub kernel_version: String,
    /// The name of the distribution.
    #[serde(skip)]
    pub os_version: String,
}

/// Memory modules of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemoryModules {
    /// The total size.
    pub capacity: u64,
    /// The number of modules.
    pub dimm_count: u64,
}

/// Zero: as in upstream's builds, which lack the library that reads it.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct NonVolatileMemory {
    /// What is used as memory.
    pub memory_mode_capacity: u64,
    /// What programs use directly.
    // The space is cAdvisor's.
    #[serde(rename = "app direct_mode_capacity")]
    pub app_direct_mode_capacity: u64,
    /// In watts.
    pub avg_power_budget: u64,
}

/// Huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HugePages {
    /// In KiB.
    pub page_size: u64,
    /// The number of pages.
    pub num_pages: u64,
}

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileSystem {
    /// The device, or the type for a tmpfs.
    pub device: String,
    /// The size.
    pub capacity: u64,
    /// The type, such as `ext4`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The number of inodes.
    pub inodes: u64,
    /// Whether inodes are counted.
    pub has_inodes: bool,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// The name, such as `sda`.
    pub name: String,
    /// The major device number.
    pub major: u64,
    /// The minor device number.
    pub minor: u64,
    /// The size.
    pub size: u64,
    /// The I/O scheduler.
    pub scheduler: String,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NetworkDevice {
    /// The name, such as `eth0`.
    pub name: String,
    /// The hardware address.
    pub mac_address: String,
    /// In Mbit/s; 0 if unknown.
    pub speed: i64,
    /// The largest packet in bytes.
    pub mtu: i64,
}

/// A NUMA node, or a socket if the kernel lists no nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Node {
    /// The number of the node, or of the socket.
    pub node_id: u32,
    /// Memory of the node.
    pub memory: u64,
    /// Huge pages of each size.
    pub hugepages: Vec<HugePages>,
    /// Cores with online CPUs.
    pub cores: Vec<Core>,
    /// Caches of all CPUs of the node.
    pub caches: Vec<Cache>,
    /// Relative distances to each node; 10 to itself.
    pub distances: Vec<u64>,
}

/// A physical core.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Unique in its socket.
    pub core_id: u32,
    /// The CPUs of the core: its hardware threads.
    pub thread_ids: Vec<u32>,
    /// Caches of this core alone.
    pub caches: Vec<Cache>,
    /// Caches of level 3 and above that some cores of the node share.
    pub uncore_caches: Vec<Cache>,
    /// Unique on the machine.
    pub socket_id: u32,
    /// The book that has the socket; empty except on IBM Z.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub book_id: String,
    /// The drawer that has the book; empty except on IBM Z.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub drawer_id: String,
}

/// A cache of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Unique among the caches of its level.
    pub id: u32,
    /// The size.
    pub size: u64,
    /// `Data`, `Instruction` or `Unified`.
    #[serde(rename = "type")]
    pub kind: String,
    /// 1 is the closest to the core.
    pub level: u32,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}
