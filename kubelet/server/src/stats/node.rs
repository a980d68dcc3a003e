//! Resource usage of the node, from `/proc` and the file system.

use std::{fs, io, path::Path};

use jiff::Timestamp;
use kubelet_host::clock;

/// Nanoseconds of a clock tick in `/proc/stat`.
const TICK: u64 = 10_000_000;

/// Resource usage of the node.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeUsage {
    pub(crate) at: Timestamp,
    pub(super) booted: Timestamp,
    pub(crate) cpu_nanoseconds: u64,
    /// In bytes, like all memory here.
    pub(super) memory_available: u64,
    pub(super) memory_usage: u64,
    pub(crate) memory_working_set: u64,
    pub(super) memory_rss: u64,
    pub(super) page_faults: u64,
    pub(super) major_page_faults: u64,
    pub(super) interfaces: Vec<Interface>,
    pub(super) default_interface: Option<String>,
    pub(super) file_system: FileSystem,
    pub(super) pid_max: u64,
    pub(super) processes: u64,
}

/// Traffic of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) rx_bytes: u64,
    pub(super) rx_errors: u64,
    pub(super) tx_bytes: u64,
    pub(super) tx_errors: u64,
}

/// The file system of the kubelet's root directory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FileSystem {
    pub(super) capacity: u64,
    pub(super) available: u64,
    pub(super) used: u64,
    pub(super) inodes: u64,
    pub(super) inodes_free: u64,
}

impl NodeUsage {
    /// Reads the usage. Blocks briefly.
    pub(crate) fn read(root_dir: &Path) -> io::Result<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo")?;
        let stat = fs::read_to_string("/proc/stat")?;
        let vmstat = fs::read_to_string("/proc/vmstat")?;
        let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
        let kibibytes = |name: &str| number(&meminfo, name).saturating_mul(1024);
        let total = kibibytes("MemTotal:");
        let usage = total.saturating_sub(kibibytes("MemFree:"));
        let working_set = usage.saturating_sub(kibibytes("Inactive(file):"));
        let pid_max = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let seconds = i64::try_from(number(&stat, "btime")).unwrap_or_default();
        Ok(Self {
            at: clock::now(),
            booted: Timestamp::from_second(seconds).unwrap_or_default(),
            cpu_nanoseconds: busy_ticks(&stat).saturating_mul(TICK),
            memory_available: total.saturating_sub(working_set),
            memory_usage: usage,
            memory_working_set: working_set,
            memory_rss: kibibytes("AnonPages:"),
            page_faults: number(&vmstat, "pgfault"),
            major_page_faults: number(&vmstat, "pgmajfault"),
            interfaces: interfaces(&fs::read_to_string("/proc/net/dev").unwrap_or_default()),
            default_interface: default_interface(&routes),
            file_system: FileSystem::of(root_dir)?,
            pid_max: pid_max.trim().parse().unwrap_or_default(),
            processes: processes(&load),
        })
    }
}

impl FileSystem {
    fn of(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok(Self {
            capacity: bytes(found.f_blocks),
            available: bytes(found.f_bavail),
            used: bytes(found.f_blocks.saturating_sub(found.f_bfree)),
            inodes: found.f_files,
            inodes_free: found.f_ffree,
        })
    }
}

/// The number after a name at the start of a line; 0 if there is none.
fn number(text: &str, name: &str) -> u64 {
    text.lines()
        .filter_map(|line| line.strip_prefix(name))
        .find(|rest| rest.starts_with([' ', '\t']))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Ticks that the CPUs were not idle. User time includes guest time.
fn busy_ticks(stat: &str) -> u64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields = line.unwrap_or_default().split_whitespace().take(8);
    let ticks = fields.map(|field| field.parse::<u64>().unwrap_or_default());
    // Idle and I/O wait.
    let busy = ticks
        .enumerate()
        .filter(|(index, _)| ![3, 4].contains(index));
    busy.map(|(_, ticks)| ticks).sum()
}

/// The number of threads in `/proc/loadavg`: 345 in `1.00 0.90 0.80 2/345 678`.
fn processes(load: &str) -> u64 {
    let field = load.split(' ').nth(3).unwrap_or_default();
    let total = field.split('/').nth(1).unwrap_or_default();
    total.parse().unwrap_or_default()
}

fn interfaces(dev: &str) -> Vec<Interface> {
    let lines = dev.lines().filter_map(|line| line.split_once(':'));
    let parsed = lines.map(|(name, counters)| {
        let counters: Vec<u64> = counters
            .split_whitespace()
            .map(|counter| counter.parse().unwrap_or_default())
            .collect();
        let at = |index: usize| counters.get(index).copied().unwrap_or_default();
        Interface {
            name: name.trim().to_owned(),
            rx_bytes: at(0),
            rx_errors: at(2),
            tx_bytes: at(8),
            tx_errors: at(10),
        }
    });
    parsed.filter(|interface| interface.name != "lo").collect()
}

/// The interface of the default route.
fn default_interface(routes: &str) -> Option<String> {
    routes.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?;
        (fields.next()? == "00000000").then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_uses_something() {
        let usage = NodeUsage::read(Path::new("/")).unwrap();
        assert!(usage.cpu_nanoseconds > 0 && usage.memory_working_set > 0);
        assert!(usage.memory_working_set <= usage.memory_usage);
        assert!(usage.file_system.capacity > 0 && usage.processes > 0);
    }

    #[test]
    fn files_of_proc_are_read() {
        let stat = "cpu  100 1 50 9000 500 2 3 4 60 0\ncpu0 1 2 3\nbtime 1700000000\n";
        assert_eq!(busy_ticks(stat), 160);
        assert_eq!(number(stat, "btime"), 1_700_000_000);
        assert_eq!(number("pgfaults 1\npgfault 7\n", "pgfault"), 7);
        assert_eq!(processes("1.00 0.90 0.80 2/345 678\n"), 345);
        let dev =
            "Inter-| Receive\n lo: 1 2 3 4 5 6 7 8 9 10 11 12\n eth0: 10 1 2 0 0 0 0 0 20 1 3 0\n";
        let expected = Interface {
            name: "eth0".to_owned(),
            rx_bytes: 10,
            rx_errors: 2,
            tx_bytes: 20,
            tx_errors: 3,
        };
        assert_eq!(interfaces(dev), [expected]);
        let routes = "Iface\tDestination\neth1\t0000A8C0\t0\neth0\t00000000\t0101A8C0\n";
        assert_eq!(default_interface(routes).as_deref(), Some("eth0"));
    }
}
