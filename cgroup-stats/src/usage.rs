//! A cgroup's usage, from its files: see the kernel's `cgroup-v1/*.rst` and `cgroup-v2.rst`.
//! Missing or unexpected files have no value.

use std::{
    fs::File,
    hash::{DefaultHasher, Hasher as _},
    path::Path,
};

use crate::{
    cgroup::Cgroup,
    reader::{HeldFiles, KernelFileReader, pairs},
};

/// v1 limits above this mean "unlimited", which the kernel rounds to pages.
const UNLIMITED: u64 = 1 << 62;
/// The unit of v1's user and system CPU times (`USER_HZ`).
const NANOSECONDS_PER_TICK: u64 = 10_000_000;
/// CPU time, in nanoseconds across all cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All of it.
    pub total: u64,
    /// In user mode.
    pub user: u64,
    /// In kernel mode.
    pub system: u64,
    /// Elapsed quota periods.
    pub periods: u64,
    /// Periods in which the quota was exhausted.
    pub throttled_periods: u64,
    /// The time throttled.
    pub throttled: u64,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Memory {
    /// All charged memory.
    pub usage: u64,
    /// The limit, if any.
    pub limit: Option<u64>,
    /// Page cache that was not used recently.
    pub inactive_file: u64,
    /// Page cache that was used recently.
    pub active_file: u64,
    /// Anonymous memory.
    pub rss: u64,
    /// Page cache.
    pub cache: u64,
    /// Mapped files.
    pub mapped_file: u64,
    /// Kernel memory; in v1 it is not part of the same file.
    pub kernel: Option<u64>,
    /// Page faults since the start.
    pub page_faults: u64,
    /// Page faults since the start that required disk I/O.
    pub major_page_faults: u64,
    /// Swap; `None` if the kernel does not account for it.
    pub swap: Option<Swap>,
    /// A digest of `memory.stat`, by which a later reading finds it unchanged; 0 for the
    /// node.
    pub stat_digest: u64,
}

/// Swap, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Swap {
    /// Swap in use.
    pub usage: u64,
    /// Swap still available; `None` without a limit.
    pub available: Option<u64>,
}

/// Memory values that are only used for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// How often the limit was hit.
    pub failures: Option<u64>,
    /// The peak usage, in bytes.
    pub max_usage: Option<u64>,
    /// Kernel memory of v1, in bytes.
    pub kernel: Option<u64>,
    /// The number of OOM-killed processes.
    pub oom_kills: Option<u64>,
}

/// A cgroup's tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tasks {
    /// The pids in this cgroup itself.
    pub processes: Option<Vec<u32>>,
    /// The number of threads, including cgroups below.
    pub threads: Option<u64>,
}

// === impl Memory ===

impl Memory {
    /// The working set: the usage without inactive page cache.
    pub fn working_set(&self) -> u64 {
        self.usage.saturating_sub(self.inactive_file)
    }

    /// Memory still available; `None` without a limit.
    pub fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set()))
    }
}

// === impl KernelFileReader ===

impl KernelFileReader {
    /// The total CPU time, in nanoseconds.
    pub fn cpu(&mut self, cgroup: &Cgroup, held: Option<&mut HeldFiles>) -> Option<u64> {
        let held = held.map(|held| &mut held.cpu);
        if let Some(v1) = cgroup.v1("cpuacct") {
            let usage = self.held_text(held, v1, "cpuacct.usage")?;
            return usage.trim().parse().ok();
        }
        let stat = self.held_text(held, cgroup.unified()?, "cpu.stat")?;
        let usec = pairs(stat).find(|(key, _)| *key == "usage_usec")?.1;
        Some(usec.saturating_mul(1000))
    }

    /// All CPU times; `None` for a cgroup without the controller. If it used no CPU time since
    /// `last`, they are those.
    pub fn cpu_times(
        &mut self,
        cgroup: &Cgroup,
        held: Option<&mut HeldFiles>,
        last: Option<CpuTimes>,
    ) -> Option<CpuTimes> {
        let Some(v1) = cgroup.v1("cpuacct") else {
            return self.cpu_times_v2(cgroup.unified()?, held);
        };
        let total = self.cpu(cgroup, held)?;
        if last.is_some_and(|last| last.total == total) {
            return last;
        }
        let mut times = CpuTimes {
            total,
            ..CpuTimes::default()
        };
        let stat = self.text(v1, "cpuacct.stat").unwrap_or_default();
        for (key, value) in pairs(stat) {
            let nanoseconds = value.saturating_mul(NANOSECONDS_PER_TICK);
            match key {
                "user" => times.user = nanoseconds,
                "system" => times.system = nanoseconds,
                _ => {}
            }
        }
        let stat = cgroup.v1("cpu").and_then(|it| self.text(it, "cpu.stat"));
        for (key, value) in pairs(stat.unwrap_or_default()) {
            match key {
                "nr_periods" => times.periods = value,
                "nr_throttled" => times.throttled_periods = value,
                "throttled_time" => times.throttled = value,
                _ => {}
            }
        }
        Some(times)
    }

    fn cpu_times_v2(&mut self, directory: &Path, held: Option<&mut HeldFiles>) -> Option<CpuTimes> {
        let held = held.map(|held| &mut held.cpu);
        let stat = self.held_text(held, directory, "cpu.stat")?;
        let mut times = CpuTimes::default();
        let mut total = None;
        for (key, value) in pairs(stat) {
            let nanoseconds = value.saturating_mul(1000);
            match key {
                "usage_usec" => total = Some(nanoseconds),
                "user_usec" => times.user = nanoseconds,
                "system_usec" => times.system = nanoseconds,
                "nr_periods" => times.periods = value,
                "nr_throttled" => times.throttled_periods = value,
                "throttled_usec" => times.throttled = nanoseconds,
                _ => {}
            }
        }
        times.total = total?;
        Some(times)
    }

    /// Memory and swap.
    pub fn memory(&mut self, cgroup: &Cgroup, held: Option<&mut HeldFiles>) -> Option<Memory> {
        let held = held.map(|held| &mut held.memory);
        match cgroup.v1("memory") {
            Some(v1) => self.memory_v1(v1, held),
            None => self.memory_v2(cgroup.unified()?, held),
        }
    }

    /// Memory and swap of a cgroup in which no task has run since `last` was read. What is not in
    /// `memory.stat`, its limits and the use by the kernel, is as in `last` if that file is the same.
    pub fn memory_of_idle(
        &mut self,
        cgroup: &Cgroup,
        mut held: Option<&mut HeldFiles>,
        last: Memory,
    ) -> Option<Memory> {
        let directory = cgroup.v1("memory").or(cgroup.unified())?;
        let stat = held.as_deref_mut().map(|held| &mut held.memory);
        if digest(self.held_text(stat, directory, "memory.stat")?) == last.stat_digest {
            return Some(last);
        }
        self.memory(cgroup, held)
    }

    fn memory_v1(&mut self, directory: &Path, held: Option<&mut Option<File>>) -> Option<Memory> {
        let mut memory = Memory {
            usage: self.number(directory, "memory.usage_in_bytes")?,
            ..Memory::default()
        };
        let stat = self.held_text(held, directory, "memory.stat");
        let stat = stat.unwrap_or_default();
        memory.stat_digest = digest(stat);
        let (mut swapped, mut limited) = (None, true);
        for (key, value) in pairs(stat) {
            match key {
                "total_inactive_file" => memory.inactive_file = value,
                "total_active_file" => memory.active_file = value,
                "total_rss" => memory.rss = value,
                "total_cache" => memory.cache = value,
                "total_mapped_file" => memory.mapped_file = value,
                "total_pgfault" => memory.page_faults = value,
                "total_pgmajfault" => memory.major_page_faults = value,
                // The minimum of its own limit and those above.
                "hierarchical_memory_limit" => limited = value < UNLIMITED,
                // Only present if swap is accounted for. The difference between memory.memsw.usage
                // and memory.usage would be the same value, but read at two times.
                "total_swap" => swapped = Some(value),
                _ => {}
            }
        }
        if limited {
            memory.limit = self.limit(directory, "memory.limit_in_bytes");
        }
        // The limit on memory and swap cannot be set below the memory limit.
        memory.swap = swapped.map(|usage| Swap {
            usage,
            available: memory.limit.and_then(|limit| {
                let both = self.limit(directory, "memory.memsw.limit_in_bytes")?;
                Some(both.saturating_sub(limit).saturating_sub(usage))
            }),
        });
        Some(memory)
    }

    pub(crate) fn limit(&mut self, directory: &Path, file: &str) -> Option<u64> {
        self.number(directory, file).filter(|n| *n < UNLIMITED)
    }

    fn memory_v2(&mut self, directory: &Path, held: Option<&mut Option<File>>) -> Option<Memory> {
        let mut memory = Memory {
            usage: self.number(directory, "memory.current")?,
            // Without a limit, the file has "max".
            limit: self.number(directory, "memory.max"),
            ..Memory::default()
        };
        let stat = self.held_text(held, directory, "memory.stat");
        let stat = stat.unwrap_or_default();
        memory.stat_digest = digest(stat);
        for (key, value) in pairs(stat) {
            match key {
                "inactive_file" => memory.inactive_file = value,
                "active_file" => memory.active_file = value,
                "anon" => memory.rss = value,
                "file" => memory.cache = value,
                "file_mapped" => memory.mapped_file = value,
                "kernel" => memory.kernel = Some(value),
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

    /// The memory values for metrics that are not in [`Memory`].
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
        let mut events = MemoryEvents {
            max_usage: self.number(directory, "memory.peak"),
            ..MemoryEvents::default()
        };
        let text = self.text(directory, "memory.events").unwrap_or_default();
        for (key, value) in pairs(text) {
            match key {
                "max" => events.failures = Some(value),
                "oom_kill" => events.oom_kills = Some(value),
                _ => {}
            }
        }
        events
    }

    /// The number of tasks in this cgroup and below, from the pids controller.
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
                .list(directory, "cgroup.procs")
                .map(|list| list.lines().filter_map(|pid| pid.parse().ok()).collect()),
            threads: self.number(directory, "pids.current"),
        }
    }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(text.as_bytes());
    hasher.finish()
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
