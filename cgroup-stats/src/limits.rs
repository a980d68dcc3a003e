//! A cgroup's limits and weights.

use crate::{cgroup::Cgroup, reader::KernelFileReader};

/// The bounds of `cpu.weight` in v2, and of `cpu.shares` in v1.
const WEIGHTS: (u64, u64) = (1, 10_000);
const SHARES: (u64, u64) = (2, 262_144);

/// A cgroup's share of the CPUs, in the units of v1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuLimits {
    /// Its weight; in v2 `cpu.weight`, scaled to the range of v1.
    pub shares: u64,
    /// The CPU time per period, in microseconds; `None` without a limit.
    pub quota: Option<u64>,
    /// The period in microseconds.
    pub period: u64,
}

/// A cgroup's limits on memory, in bytes; `None` without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Memory.
    pub memory: Option<u64>,
    /// Swap; in v1 memory and swap together.
    pub swap: Option<u64>,
    /// What reclaim leaves: v1's soft limit, v2's `memory.min`.
    pub reservation: Option<u64>,
}

impl KernelFileReader {
    /// The CPU limits; `None` for a cgroup without the controller.
    pub fn cpu_limits(&mut self, cgroup: &Cgroup) -> Option<CpuLimits> {
        if let Some(v1) = cgroup.v1("cpu") {
            return Some(CpuLimits {
                shares: self.number(v1, "cpu.shares")?,
                // Without a limit, the file has -1.
                quota: self.number(v1, "cpu.cfs_quota_us"),
                period: self.number(v1, "cpu.cfs_period_us")?,
            });
        }
        let directory = cgroup.unified()?;
        let weight = self.number(directory, "cpu.weight")?;
        let (quota, period) = self.text(directory, "cpu.max")?.trim().split_once(' ')?;
        Some(CpuLimits {
            shares: shares(weight),
            quota: quota.parse().ok(),
            period: period.parse().ok()?,
        })
    }

    /// The memory limits.
    pub fn memory_limits(&mut self, cgroup: &Cgroup) -> MemoryLimits {
        if let Some(v1) = cgroup.v1("memory") {
            return MemoryLimits {
                memory: self.limit(v1, "memory.limit_in_bytes"),
                swap: self.limit(v1, "memory.memsw.limit_in_bytes"),
                reservation: self.limit(v1, "memory.soft_limit_in_bytes"),
            };
        }
        let Some(directory) = cgroup.unified() else {
            return MemoryLimits::default();
        };
        MemoryLimits {
            memory: self.number(directory, "memory.max"),
            swap: self.number(directory, "memory.swap.max"),
            reservation: self.number(directory, "memory.min").filter(|min| *min > 0),
        }
    }

    /// The limit on threads; `None` without one.
    pub fn threads_max(&mut self, cgroup: &Cgroup) -> Option<u64> {
        // Without a limit, the file has "max".
        self.number(cgroup.v1("pids").or(cgroup.unified())?, "pids.max")
    }
}

/// cAdvisor's scale.
fn shares(weight: u64) -> u64 {
    let weight = weight.clamp(WEIGHTS.0, WEIGHTS.1);
    SHARES.0 + (weight - WEIGHTS.0) * (SHARES.1 - SHARES.0) / (WEIGHTS.1 - WEIGHTS.0)
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path};

    use super::*;

    fn write(directory: &Path, files: &[(&str, &str)]) {
        for (name, content) in files {
            fs::write(directory.join(name), content).unwrap();
        }
    }

    #[test]
    fn both_versions_have_limits() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            &[
                ("cpu.shares", "512\n"),
                ("cpu.cfs_quota_us", "20000\n"),
                ("cpu.cfs_period_us", "100000\n"),
                ("memory.limit_in_bytes", "4096\n"),
                ("memory.memsw.limit_in_bytes", "9223372036854771712\n"),
                ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
                ("cpu.weight", "1\n"),
                ("cpu.max", "max 100000\n"),
                ("memory.max", "4096\n"),
                ("memory.swap.max", "0\n"),
                ("memory.min", "0\n"),
            ],
        );
        let v1 = Cgroup {
            v1: ["cpu", "memory"]
                .map(|name| (name, dir.path().to_owned()))
                .into(),
            unified: None,
        };
        let v2 = Cgroup {
            v1: BTreeMap::new(),
            unified: Some(dir.path().to_owned()),
        };
        let mut reader = KernelFileReader::default();
        let cpu = |shares, quota| CpuLimits {
            shares,
            quota,
            period: 100_000,
        };
        assert_eq!(reader.cpu_limits(&v1), Some(cpu(512, Some(20_000))));
        assert_eq!(reader.cpu_limits(&v2), Some(cpu(2, None)));
        let memory = |swap| MemoryLimits {
            memory: Some(4096),
            swap,
            reservation: None,
        };
        assert_eq!(reader.memory_limits(&v1), memory(None));
        assert_eq!(reader.memory_limits(&v2), memory(Some(0)));
        write(
            dir.path(),
            &[("cpu.cfs_quota_us", "-1\n"), ("cpu.weight", "10000\n")],
        );
        assert_eq!(reader.cpu_limits(&v1), Some(cpu(512, None)));
        assert_eq!(reader.cpu_limits(&v2), Some(cpu(262_144, None)));
    }
}
