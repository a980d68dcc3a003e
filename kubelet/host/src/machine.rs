//! The machine's CPUs, memory, huge pages and cgroup version.

use std::{collections::BTreeMap, fs, path::Path};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use tracing::warn;

use crate::cpu_set::CpuSet;

/// Assumed if the machine's memory cannot be read.
const FALLBACK_MEMORY: i64 = 4 << 30;
const CGROUPS: &str = "/sys/fs/cgroup";

/// Resources of this machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Memory in bytes.
    pub memory: i64,
    /// Swap in bytes.
    pub swap: i64,
    /// Number of online CPUs.
    pub cpus: i64,
    /// Sizes of huge pages in bytes.
    pub huge_page_sizes: Vec<u64>,
    /// Whether the unified hierarchy is mounted.
    pub cgroup_v2: bool,
    /// Whether cgroups can limit swap.
    pub swap_controller: bool,
}

impl Machine {
    /// Reads `/proc` and `/sys`. Blocks for a moment.
    pub fn read() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = kibibytes(&meminfo, "MemTotal:").unwrap_or_else(|| {
            warn!("cannot read the node's memory from /proc/meminfo; assuming 4 GiB");
            FALLBACK_MEMORY
        });
        let cgroup_v2 = Path::new(CGROUPS).join("cgroup.controllers").exists();
        Self {
            memory,
            swap: kibibytes(&meminfo, "SwapTotal:").unwrap_or_default(),
            cpus: cpus(),
            huge_page_sizes: huge_page_sizes(),
            cgroup_v2,
            swap_controller: has_swap_controller(cgroup_v2),
        }
    }

    /// The capacity of a node without an API server. `root_dir` is on the file system that pods
    /// fill. Blocks on that file system.
    pub fn capacity(&self, root_dir: &Path) -> BTreeMap<String, Quantity> {
        let storage = rustix::fs::statvfs(root_dir)
            .ok()
            .map(|stat| stat.f_blocks.saturating_mul(stat.f_frsize).to_string());
        [
            ("cpu", Some(self.cpus.to_string())),
            ("memory", Some(self.memory.to_string())),
            ("ephemeral-storage", storage),
        ]
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), Quantity(amount?))))
        .collect()
    }
}

/// The number of processes and threads that the kernel allows, as told in `/proc` at `proc`.
pub fn most_processes(proc: &Path) -> Option<u64> {
    let read = |file: &str| -> Option<u64> {
        let text = fs::read_to_string(proc.join("sys/kernel").join(file)).ok()?;
        text.trim().parse().ok()
    };
    let limits = [read("pid_max"), read("threads-max")];
    limits.into_iter().flatten().min()
}

/// The human-readable name of the operating system (os-release(5)), of the root file
/// system at `root`. Blocks briefly.
pub fn os_image(root: &Path) -> String {
    let text = ["etc/os-release", "usr/lib/os-release"]
        .iter()
        .find_map(|path| fs::read_to_string(root.join(path)).ok())
        .unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))
        .map(|name| name.trim().trim_matches(['"', '\'']));
    name.filter(|name| !name.is_empty())
        .unwrap_or("Linux")
        .to_owned()
}

/// A field of `/proc/meminfo`, in bytes.
fn kibibytes(meminfo: &str, field: &str) -> Option<i64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: i64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn cpus() -> i64 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    count(online.trim()).unwrap_or_else(|| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        i64::try_from(cpus).unwrap_or(1)
    })
}

/// The number of CPUs in a list such as `0-3,8`; `None` if there are none.
fn count(list: &str) -> Option<i64> {
    let cpus: CpuSet = list.parse().ok()?;
    let count = i64::try_from(cpus.len()).ok()?;
    Some(count).filter(|count| *count > 0)
}

fn huge_page_sizes() -> Vec<u64> {
    let mut sizes: Vec<u64> = fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let size = name.to_str()?.strip_prefix("hugepages-")?;
            let kibibytes: u64 = size.strip_suffix("kB")?.parse().ok()?;
            kibibytes.checked_mul(1024)
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

fn has_swap_controller(cgroup_v2: bool) -> bool {
    let root = Path::new(CGROUPS);
    if !cgroup_v2 {
        return root.join("memory/memory.memsw.limit_in_bytes").exists();
    }
    // The root cgroup has no such file; this process's own cgroup does.
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    own.is_some_and(|own| root.join(own).join("memory.swap.max").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lower_limit_on_processes_counts() {
        let proc = tempfile::tempdir().unwrap();
        assert_eq!(most_processes(proc.path()), None);
        let kernel = proc.path().join("sys/kernel");
        fs::create_dir_all(&kernel).unwrap();
        fs::write(kernel.join("pid_max"), "4194304\n").unwrap();
        assert_eq!(most_processes(proc.path()), Some(4_194_304));
        fs::write(kernel.join("threads-max"), "63000\n").unwrap();
        assert_eq!(most_processes(proc.path()), Some(63_000));
    }

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:        2048 kB\nMemFree: 1 kB\nSwapTotal: 1 kB\n";
        assert_eq!(kibibytes(text, "MemTotal:"), Some(2 << 20));
        assert_eq!(kibibytes(text, "SwapTotal:"), Some(1024));
        assert_eq!(kibibytes(text, "HugePages:"), None);
    }

    #[test]
    fn cpus_are_counted_in_ranges() {
        for (list, expected) in [("0", Some(1)), ("0-3,8,10-11", Some(7)), ("", None)] {
            assert_eq!(count(list), expected, "{list}");
        }
    }

    #[test]
    fn a_machine_offers_something() {
        let capacity = Machine::read().capacity(Path::new("/"));
        assert!(capacity.contains_key("ephemeral-storage"));
        assert_ne!(capacity["cpu"].0, "0");
    }
}
