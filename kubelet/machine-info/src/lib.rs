//! The machine's hardware, in the format of cAdvisor's `MachineInfo`, from the host's files below
//! `/proc`, `/sys` and `/etc`.

#![forbid(unsafe_code)]

mod devices;
mod file_systems;
mod format;
mod machine_files;
mod memory;
mod topology;

use std::{path::PathBuf, sync::Arc, time::Duration};

use kubelet_host::{clock, machine::os_image, repeatable::blocking};
use tokio::{sync::Mutex, task::JoinError, time::Instant};

pub use self::format::{
    Cache, Core, Disk, FileSystem, HugePages, MachineInfo, MemoryModules, NetworkDevice, Node,
    NonVolatileMemory,
};
use self::{machine_files::MachineFiles, topology::Topology};

/// How long a reading is valid: cAdvisor's `update_machine_info_interval`.
const VALID: Duration = Duration::from_secs(300);

/// Reads the machine's data, at most once in five minutes. Clones share what was read.
#[derive(Clone, Debug)]
pub struct MachineReader {
    root: PathBuf,
    last: Arc<Mutex<Option<Reading>>>,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    machine: Arc<MachineInfo>,
}

impl MachineReader {
    /// A reader of the machine whose root file system is at `root`.
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            last: Arc::default(),
        }
    }

    /// The machine's data. What cannot be read is zero or empty.
    ///
    /// # Errors
    /// The reading panicked.
    pub async fn read(&self) -> Result<Arc<MachineInfo>, JoinError> {
        let mut last = self.last.lock().await;
        if let Some(reading) = &*last
            && reading.at.elapsed() < VALID
        {
            return Ok(Arc::clone(&reading.machine));
        }
        let files = MachineFiles {
            root: self.root.clone(),
        };
        let (machine, filesystems) = tokio::join!(
            blocking(move || read(&files)),
            file_systems::read(self.root.clone())
        );
        let machine = Arc::new(MachineInfo {
            filesystems,
            ..machine?
        });
        *last = Some(Reading {
            at: Instant::now(),
            machine: Arc::clone(&machine),
        });
        Ok(machine)
    }
}

/// All but the file systems.
fn read(files: &MachineFiles) -> MachineInfo {
    let cpuinfo = files.text("proc/cpuinfo").unwrap_or_default();
    let meminfo = files.text("proc/meminfo").unwrap_or_default();
    let bytes = |field| memory::field_in_bytes(&meminfo, field).unwrap_or_default();
    let topology = Topology::read(files);
    let [num_physical_cores, num_sockets, num_books, num_drawers] = topology.counts();
    MachineInfo {
        timestamp: clock::now().to_string(),
        vendor_id: field(&cpuinfo, "vendor_id").unwrap_or_default().to_owned(),
        num_cores: topology.threads(),
        num_physical_cores,
        num_sockets,
        num_books,
        num_drawers,
        cpu_frequency_khz: files
            .value("sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")
            .unwrap_or_else(|| frequency(&cpuinfo)),
        memory_capacity: bytes("MemTotal:"),
        swap_capacity: bytes("SwapTotal:"),
        memory_by_type: memory::modules(files),
        hugepages: memory::huge_pages("sys/kernel/mm/hugepages", files),
        machine_id: files.first(&["etc/machine-id", "var/lib/dbus/machine-id"]),
        system_uuid: files.first(&[
            "sys/class/dmi/id/product_uuid",
            "proc/device-tree/system-id",
            "proc/device-tree/vm,uuid",
            "etc/machine-id",
        ]),
        boot_id: files.first(&["proc/sys/kernel/random/boot_id"]),
        disk_map: devices::disks(files),
        network_devices: devices::network_devices(files),
        topology: topology.nodes,
        // The node's object has what the cloud says of it.
        cloud_provider: "Unknown",
        instance_type: "Unknown",
        instance_id: "None",
        kernel_version: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        os_version: os_image(&files.root),
        ..MachineInfo::default()
    }
}

/// The CPU frequency in kHz; 0 if unknown.
fn frequency(cpuinfo: &str) -> u64 {
    // POWER: `clock : 3425.000000MHz`.
    let megahertz = field(cpuinfo, "cpu MHz").or_else(|| field(cpuinfo, "clock"));
    let megahertz = megahertz.unwrap_or_default().trim_end_matches("MHz");
    let (whole, fraction) = megahertz.split_once('.').unwrap_or((megahertz, ""));
    let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
    let whole: u64 = whole.parse().unwrap_or_default();
    let thousandths = thousandths.parse::<u64>().unwrap_or_default();
    whole.saturating_mul(1000).saturating_add(thousandths)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests;
