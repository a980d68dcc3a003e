//! What a cgroup uses, out of its files: the kernel's `cgroup-v1/*.rst` and
//! `cgroup-v2.rst`. A file that is not there, or says something else, is no value.

use std::{fs::File, io::Read as _, path::Path, path::PathBuf};

use cri_proto::runtime::v1::{PsiData, PsiStats};

use super::cgroup::Cgroup;

/// A v1 limit above this is none: the kernel rounds "unlimited" to pages.
const UNLIMITED: u64 = 1 << 62;
/// v1 tells CPU times of user and system in these (`USER_HZ`).
const NANOSECONDS_PER_TICK: u64 = 10_000_000;

/// CPU time, in nanoseconds over all cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// In user mode.
    pub user: u64,
    /// In the kernel.
    pub system: u64,
    /// Periods that have passed under a quota.
    pub periods: u64,
    /// Periods in which the quota ran out.
    pub throttled_periods: u64,
    /// How long it was held back.
    pub throttled: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All that is charged.
    pub usage: u64,
    /// At most; `None` without a limit.
    pub limit: Option<u64>,
    /// Page cache that was not used lately.
    pub inactive_file: u64,
    /// Page cache that was used lately.
    pub active_file: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Mapped files.
    pub mapped_file: u64,
    /// Page faults so far.
    pub page_faults: u64,
    /// Page faults so far that had to wait for a disk.
    pub major_page_faults: u64,
    /// Swap; `None` where the kernel does not count it.
    pub swap: Option<Swap>,
}

/// Swap, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    /// In use.
    pub usage: u64,
    /// What may be used yet; `None` without a limit.
    pub available: Option<u64>,
}

/// What is told of memory for metrics alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// How often the limit was hit.
    pub failures: Option<u64>,
    /// The most that was ever charged, in bytes.
    pub max_usage: Option<u64>,
    /// Kernel memory, in bytes.
    pub kernel: Option<u64>,
    /// Processes that were killed for lack of memory.
    pub oom_kills: Option<u64>,
}

/// Tasks of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tasks {
    /// Processes of this cgroup itself.
    pub processes: Option<u64>,
    /// Threads, also of the cgroups below.
    pub threads: Option<u64>,
    /// Threads at most; `None` without a limit.
    pub threads_max: Option<u64>,
}

/// What was read from and written to one device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceIo {
    /// `major:minor`.
    pub device: String,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
}

/// Reads files of cgroups into one buffer.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    path: PathBuf,
}

// === impl Memory ===

impl Memory {
    /// What cannot be had back without harm: the usage without the inactive page cache.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }

    /// What may be used yet; `None` without a limit.
    pub fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set()))
    }
}

// === impl Reader ===

impl Reader {
    /// The text of a file; `None` when it is not there.
    pub fn text(&mut self, directory: &Path, file: &str) -> Option<&str> {
        self.path.clear();
        self.path.push(directory);
        self.path.push(file);
        self.buffer.clear();
        File::open(&self.path)
            .and_then(|mut file| file.read_to_end(&mut self.buffer))
            .ok()?;
        std::str::from_utf8(&self.buffer).ok()
    }

    fn number(&mut self, directory: &Path, file: &str) -> Option<u64> {
        self.text(directory, file)?.trim().parse().ok()
    }

    /// CPU time used so far, in nanoseconds.
    pub fn cpu(&mut self, cgroup: &Cgroup) -> Option<u64> {
        if let Some(v1) = cgroup.v1("cpuacct") {
            return self.number(v1, "cpuacct.usage");
        }
        let stat = self.text(cgroup.unified()?, "cpu.stat")?;
        let usec = pairs(stat).find(|(key, _)| *key == "usage_usec")?.1;
        Some(usec.saturating_mul(1000))
    }

    /// Where the CPU time went, and how long it was held back.
    pub fn cpu_times(&mut self, cgroup: &Cgroup) -> CpuTimes {
        let mut times = CpuTimes::default();
        if let Some(v1) = cgroup.v1("cpuacct") {
            let stat = self.text(v1, "cpuacct.stat").unwrap_or_default();
            for (key, value) in pairs(stat) {
                let nanoseconds = value.saturating_mul(NANOSECONDS_PER_TICK);
                match key {
                    "user" => times.user = nanoseconds,
                    "system" => times.system = nanoseconds,
                    _ => {}
                }
            }
        }
        let Some(directory) = cgroup.v1("cpu").or(cgroup.unified()) else {
            return times;
        };
        let stat = self.text(directory, "cpu.stat").unwrap_or_default();
        for (key, value) in pairs(stat) {
            match key {
                "user_usec" => times.user = value.saturating_mul(1000),
                "system_usec" => times.system = value.saturating_mul(1000),
                "nr_periods" => times.periods = value,
                "nr_throttled" => times.throttled_periods = value,
                "throttled_time" => times.throttled = value,
                "throttled_usec" => times.throttled = value.saturating_mul(1000),
                _ => {}
            }
        }
        times
    }

    /// Memory and swap.
    pub fn memory(&mut self, cgroup: &Cgroup) -> Option<Memory> {
        match cgroup.v1("memory") {
            Some(v1) => self.memory_v1(v1),
            None => self.memory_v2(cgroup.unified()?),
        }
    }

    fn memory_v1(&mut self, directory: &Path) -> Option<Memory> {
        let mut memory = Memory {
            usage: self.number(directory, "memory.usage_in_bytes")?,
            limit: self.limit(directory, "memory.limit_in_bytes"),
            ..Memory::default()
        };
        let stat = self.text(directory, "memory.stat").unwrap_or_default();
        let mut swapped = None;
        for (key, value) in pairs(stat) {
            match key {
                "total_inactive_file" => memory.inactive_file = value,
                "total_active_file" => memory.active_file = value,
                "total_rss" => memory.rss = value,
                "total_cache" => memory.cache = value,
                "total_mapped_file" => memory.mapped_file = value,
                "total_pgfault" => memory.page_faults = value,
                "total_pgmajfault" => memory.major_page_faults = value,
                // Only there when swap is counted. The difference of memory.memsw.usage
                // and memory.usage is the same, but of two moments.
                "total_swap" => swapped = Some(value),
                _ => {}
            }
        }
        // A limit on both together can only be under a limit on memory.
        memory.swap = swapped.map(|usage| Swap {
            usage,
            available: memory.limit.and_then(|limit| {
                let both = self.limit(directory, "memory.memsw.limit_in_bytes")?;
                Some(both.saturating_sub(limit).saturating_sub(usage))
            }),
        });
        Some(memory)
    }

    fn limit(&mut self, directory: &Path, file: &str) -> Option<u64> {
        self.number(directory, file).filter(|n| *n < UNLIMITED)
    }

    fn memory_v2(&mut self, directory: &Path) -> Option<Memory> {
        let mut memory = Memory {
            usage: self.number(directory, "memory.current")?,
            // Without a limit it says "max".
            limit: self.number(directory, "memory.max"),
            ..Memory::default()
        };
        let stat = self.text(directory, "memory.stat").unwrap_or_default();
        for (key, value) in pairs(stat) {
            match key {
                "inactive_file" => memory.inactive_file = value,
                "active_file" => memory.active_file = value,
                "anon" => memory.rss = value,
                "file" => memory.cache = value,
                "file_mapped" => memory.mapped_file = value,
                "pgfault" => memory.page_faults = value,
                "pgmajfault" => memory.major_page_faults = value,
                _ => {}
            }
        }
        memory.swap = self
            .number(directory, "memory.swap.current")
            .map(|usage| Swap {
                usage,
                available: self
                    .number(directory, "memory.swap.max")
                    .map(|limit| limit.saturating_sub(usage)),
            });
        Some(memory)
    }

    /// What metrics tell of memory beside [`Memory`].
    pub fn memory_events(&mut self, cgroup: &Cgroup) -> MemoryEvents {
        if let Some(v1) = cgroup.v1("memory") {
            return MemoryEvents {
                failures: self.number(v1, "memory.failcnt"),
                max_usage: self.number(v1, "memory.max_usage_in_bytes"),
                kernel: self.number(v1, "memory.kmem.usage_in_bytes"),
                oom_kills: self.pair(v1, "memory.oom_control", "oom_kill"),
            };
        }
        let Some(directory) = cgroup.unified() else {
            return MemoryEvents::default();
        };
        MemoryEvents {
            failures: self.pair(directory, "memory.events", "max"),
            max_usage: self.number(directory, "memory.peak"),
            kernel: self.pair(directory, "memory.stat", "kernel"),
            oom_kills: self.pair(directory, "memory.events", "oom_kill"),
        }
    }

    fn pair(&mut self, directory: &Path, file: &str, key: &str) -> Option<u64> {
        let text = self.text(directory, file)?;
        Some(pairs(text).find(|(found, _)| *found == key)?.1)
    }

    /// Tasks in this cgroup and those below, as the pids controller counts them.
    pub fn threads(&mut self, cgroup: &Cgroup) -> Option<u64> {
        let directory = cgroup.v1("pids").or(cgroup.unified())?;
        self.number(directory, "pids.current")
    }

    /// Processes and threads.
    pub fn tasks(&mut self, cgroup: &Cgroup) -> Tasks {
        let Some(directory) = cgroup.v1("pids").or(cgroup.unified()) else {
            return Tasks::default();
        };
        Tasks {
            processes: self
                .text(directory, "cgroup.procs")
                .map(|list| list.lines().count() as u64),
            threads: self.number(directory, "pids.current"),
            threads_max: self.number(directory, "pids.max"),
        }
    }

    /// What waits for `resource`: `cpu`, `memory` or `io`. Only the v2 hierarchy tells,
    /// and only when the kernel measures it.
    pub fn pressure(&mut self, cgroup: &Cgroup, resource: Resource) -> Option<PsiStats> {
        let text = self.text(cgroup.unified()?, resource.file())?;
        let mut stats = PsiStats::default();
        for line in text.lines() {
            let Some((kind, values)) = line.split_once(' ') else {
                continue;
            };
            match kind {
                "some" => stats.some = Some(psi(values)),
                "full" => stats.full = Some(psi(values)),
                _ => {}
            }
        }
        (stats != PsiStats::default()).then_some(stats)
    }

    /// What was read and written, by device.
    pub fn io(&mut self, cgroup: &Cgroup) -> Vec<DeviceIo> {
        let mut devices: Vec<DeviceIo> = Vec::new();
        let Some(v1) = cgroup.v1("blkio") else {
            if let Some(directory) = cgroup.unified() {
                let stat = self.text(directory, "io.stat").unwrap_or_default();
                devices.extend(stat.lines().filter_map(io_v2));
            }
            return devices;
        };
        for (file, counts_bytes) in [
            ("blkio.throttle.io_service_bytes_recursive", true),
            ("blkio.throttle.io_serviced_recursive", false),
        ] {
            for line in self.text(v1, file).unwrap_or_default().lines() {
                let mut words = line.split(' ');
                let (Some(device), Some(operation), Some(count)) =
                    (words.next(), words.next(), words.next())
                else {
                    continue;
                };
                let Ok(count) = count.parse() else { continue };
                let index = devices.iter().position(|known| known.device == device);
                let index = index.unwrap_or_else(|| {
                    devices.push(DeviceIo {
                        device: device.to_owned(),
                        ..DeviceIo::default()
                    });
                    devices.len() - 1
                });
                let io = &mut devices[index];
                match (operation, counts_bytes) {
                    ("Read", true) => io.read_bytes = count,
                    ("Read", false) => io.reads = count,
                    ("Write", true) => io.write_bytes = count,
                    ("Write", false) => io.writes = count,
                    _ => {}
                }
            }
        }
        devices
    }
}

/// What can be under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Disks.
    Io,
}

impl Resource {
    fn file(self) -> &'static str {
        match self {
            Self::Cpu => "cpu.pressure",
            Self::Memory => "memory.pressure",
            Self::Io => "io.pressure",
        }
    }
}

/// Lines of a key and a number.
fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.parse().ok()?))
    })
}

/// `avg10=0.00 avg60=0.00 avg300=0.00 total=0`; the total is in microseconds there, and
/// in nanoseconds in CRI.
fn psi(values: &str) -> PsiData {
    let mut data = PsiData::default();
    for pair in values.split(' ') {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        let average = || value.parse().unwrap_or_default();
        match key {
            "avg10" => data.avg10 = average(),
            "avg60" => data.avg60 = average(),
            "avg300" => data.avg300 = average(),
            "total" => {
                let microseconds: u64 = value.parse().unwrap_or_default();
                data.total = microseconds.saturating_mul(1000);
            }
            _ => {}
        }
    }
    data
}

/// `8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6`.
fn io_v2(line: &str) -> Option<DeviceIo> {
    let (device, values) = line.split_once(' ')?;
    let mut io = DeviceIo {
        device: device.to_owned(),
        ..DeviceIo::default()
    };
    for pair in values.split(' ') {
        let Some((key, value)) = pair.split_once('=') else {
            continue;
        };
        let Ok(value) = value.parse() else { continue };
        match key {
            "rbytes" => io.read_bytes = value,
            "wbytes" => io.write_bytes = value,
            "rios" => io.reads = value,
            "wios" => io.writes = value,
            _ => {}
        }
    }
    Some(io)
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
