//! Resource usage of the node as a whole, from `/proc`.

use std::{fs, io, path::Path, sync::Arc};

use cgroup_stats::{CpuTimes, Memory, MemoryLimits, Pressure, Swap, disks, interfaces};
use jiff::Timestamp;
use kubelet_host::{clock, machine::most_processes};

use crate::{
    subjects::Depth,
    usage::{CpuUsage, Details, MemoryUsage, NodeUsage, Usage},
};

/// Nanoseconds of a clock tick in `/proc/stat`.
const TICK: u64 = 10_000_000;

/// Reads the usage. Blocks briefly.
///
/// # Errors
/// A file of `/proc` cannot be read.
pub(crate) fn read(proc: &Path, depth: Depth) -> io::Result<NodeUsage> {
    let read = |file: &str| fs::read_to_string(proc.join(file));
    let optional = |file: &str| read(file).unwrap_or_default();
    let stat = read("stat")?;
    let memory = memory(&read("meminfo")?, &read("vmstat")?);
    let seconds = i64::try_from(number(&stat, "btime")).unwrap_or_default();
    let times = cpu_times(&stat);
    let now = clock::now();
    let at = i64::try_from(now.as_nanosecond()).unwrap_or_default();
    let mut usage = Usage {
        cpu: Some(CpuUsage {
            at,
            total: times.total,
            nano_cores: None,
            pressure: None,
        }),
        memory: Some(MemoryUsage::new(at, &memory)),
        swap: memory.swap,
        ..Usage::default()
    };
    if depth == Depth::CpuAndMemory {
        return Ok(NodeUsage {
            at: now,
            booted: Timestamp::from_second(seconds).unwrap_or_default(),
            usage,
            ..NodeUsage::default()
        });
    }
    let pressure = |resource: &str| Pressure::parse(&optional(&format!("pressure/{resource}")));
    usage.io_pressure = pressure("io");
    if let Some(cpu) = &mut usage.cpu {
        cpu.pressure = pressure("cpu");
    }
    if let Some(memory) = &mut usage.memory {
        memory.pressure = pressure("memory");
    }
    usage.details = Some(Arc::new(Details {
        cpu_times: times,
        memory,
        memory_limits: MemoryLimits {
            memory: memory.limit,
            ..MemoryLimits::default()
        },
        ..Details::default()
    }));
    Ok(NodeUsage {
        at: now,
        booted: Timestamp::from_second(seconds).unwrap_or_default(),
        usage,
        interfaces: interfaces(&optional("net/dev")),
        disks: disks(&optional("diskstats")),
        default_interface: default_interface(&optional("net/route")),
        most_processes: most_processes(proc).unwrap_or_default(),
        processes: processes(&optional("loadavg")),
    })
}

/// Reads `/proc/meminfo` and `/proc/vmstat`.
fn memory(meminfo: &str, vmstat: &str) -> Memory {
    let kibibytes = |name: &str| number(meminfo, name).saturating_mul(1024);
    let total = kibibytes("MemTotal:");
    let swap_free = kibibytes("SwapFree:");
    // As the root cgroup counts: not the kernel's own memory, which no eviction of a pod frees.
    let used = ["AnonPages:", "Cached:", "Buffers:", "SwapCached:"];
    Memory {
        usage: used.into_iter().map(kibibytes).sum(),
        limit: Some(total),
        inactive_file: kibibytes("Inactive(file):"),
        active_file: kibibytes("Active(file):"),
        rss: kibibytes("AnonPages:"),
        cache: kibibytes("Cached:"),
        mapped_file: kibibytes("Mapped:"),
        kernel: None,
        page_faults: number(vmstat, "pgfault"),
        major_page_faults: number(vmstat, "pgmajfault"),
        stat_digest: 0,
        swap: Some(Swap {
            usage: kibibytes("SwapTotal:").saturating_sub(swap_free),
            available: Some(swap_free),
        }),
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

/// The time that the CPUs were not idle, from `/proc/stat`:
/// `cpu user nice system idle iowait irq softirq steal ...`. User time includes guests.
fn cpu_times(stat: &str) -> CpuTimes {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "));
    let fields = line.unwrap_or_default().split_whitespace().take(8);
    let mut times = CpuTimes::default();
    for (index, field) in fields.enumerate() {
        let ticks = field.parse::<u64>().unwrap_or_default();
        let sum = match index {
            0 | 1 => &mut times.user,
            // Idle and I/O wait.
            3 | 4 => continue,
            _ => &mut times.system,
        };
        *sum = sum.saturating_add(ticks.saturating_mul(TICK));
    }
    times.total = times.user.saturating_add(times.system);
    times
}

/// The number of threads in `/proc/loadavg`: 345 in `1.00 0.90 0.80 2/345 678`.
fn processes(load: &str) -> u64 {
    let field = load.split(' ').nth(3).unwrap_or_default();
    let total = field.split('/').nth(1).unwrap_or_default();
    total.parse().unwrap_or_default()
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
        let found = read(Path::new("/proc"), Depth::Everything).unwrap();
        let memory = found.usage.memory.unwrap();
        assert!(found.usage.cpu.unwrap().total > 0 && found.processes > 0);
        assert!(memory.working_set > Some(0) && memory.working_set <= memory.usage);
        assert!(memory.available > Some(0));
    }

    #[test]
    fn files_of_proc_are_read() {
        let stat = "cpu  100 1 50 9000 500 2 3 4 60 0\ncpu0 1 2 3\nbtime 1700000000\n";
        let times = cpu_times(stat);
        assert_eq!((times.user, times.system), (101 * TICK, 59 * TICK));
        assert_eq!(number(stat, "btime"), 1_700_000_000);
        let meminfo = "MemTotal: 100 kB\nMemFree: 20 kB\nBuffers: 5 kB\nCached: 30 kB\n\
            SwapCached: 1 kB\nInactive(file): 10 kB\nSwapTotal: 8 kB\nSwapFree: 5 kB\n\
            AnonPages: 24 kB\nSlab: 20 kB\n";
        let memory = memory(meminfo, "pgfaults 1\npgfault 7\n");
        assert_eq!((memory.usage, memory.working_set()), (60 << 10, 50 << 10));
        assert_eq!(memory.available(), Some(50 << 10));
        let swap = Swap {
            usage: 3 << 10,
            available: Some(5 << 10),
        };
        assert_eq!((memory.swap, memory.page_faults), (Some(swap), 7));
        assert_eq!(processes("1.00 0.90 0.80 2/345 678\n"), 345);
        let routes = "Iface\tDestination\neth1\t0000A8C0\t0\neth0\t00000000\t0101A8C0\n";
        assert_eq!(default_interface(routes).as_deref(), Some("eth0"));
    }
}
