//! The limits of a cgroup, as values of its files.

use std::{borrow::Cow, collections::BTreeMap};

use kubelet_pod_spec::{cpu, huge_pages};

/// Limits and weights of a cgroup; those that are not set are left as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupConfig {
    /// Weight of its CPU time, as `cpu.shares`.
    pub cpu_shares: Option<i64>,
    /// CPU time per period in microseconds; -1 is no limit.
    pub cpu_quota: Option<i64>,
    /// Period of the quota in microseconds.
    pub cpu_period: Option<i64>,
    /// Memory in bytes; -1 is no limit.
    pub memory: Option<i64>,
    /// Number of processes and threads; -1 is no limit.
    pub pids: Option<i64>,
    /// Bytes of huge pages by page size. Sizes that are not listed are limited to none.
    pub huge_pages: Option<BTreeMap<u64, u64>>,
    /// Files of cgroup v2 that have no field here; ignored with v1.
    pub unified: BTreeMap<&'static str, String>,
}

/// The value of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The controller that has the file.
    pub(crate) controller: &'static str,
    pub(crate) file: Cow<'static, str>,
    pub(crate) value: String,
    /// The file may be missing.
    pub(crate) optional: bool,
}

fn setting(controller: &'static str, file: &'static str, value: impl ToString) -> Setting {
    Setting {
        controller,
        file: file.into(),
        value: value.to_string(),
        optional: false,
    }
}

/// `max` for a negative limit.
fn or_max(limit: i64) -> String {
    if limit < 0 {
        "max".to_owned()
    } else {
        limit.to_string()
    }
}

/// systemd has no limit of 0 processes, so both drivers set 1.
const fn pids(limit: i64) -> i64 {
    if limit == 0 { 1 } else { limit }
}

impl CgroupConfig {
    /// The values of the files of cgroup v1. `page_sizes` are the machine's sizes of huge pages.
    pub(crate) fn v1(&self, page_sizes: &[u64]) -> Vec<Setting> {
        let mut settings = Vec::new();
        if let Some(shares) = self.cpu_shares {
            settings.push(setting("cpu", "cpu.shares", shares));
        }
        if let Some(period) = self.cpu_period {
            settings.push(setting("cpu", "cpu.cfs_period_us", period));
        }
        if let Some(quota) = self.cpu_quota {
            settings.push(setting("cpu", "cpu.cfs_quota_us", unlimited_if_zero(quota)));
        }
        if let Some(memory) = self.memory.filter(|memory| *memory != 0) {
            settings.push(setting("memory", "memory.limit_in_bytes", memory));
        }
        if let Some(limit) = self.pids {
            settings.push(setting("pids", "pids.max", or_max(pids(limit))));
        }
        self.huge_pages(page_sizes, "limit_in_bytes", &mut settings);
        settings
    }

    /// The values of the files of cgroup v2.
    pub(crate) fn v2(&self, page_sizes: &[u64]) -> Vec<Setting> {
        let mut settings = Vec::new();
        if let Some(shares) = self.cpu_shares {
            settings.push(setting("cpu", "cpu.weight", cpu::weight(shares)));
        }
        if self.cpu_quota.is_some() || self.cpu_period.is_some() {
            let quota = unlimited_if_zero(self.cpu_quota.unwrap_or_default());
            let period = self.cpu_period.unwrap_or(DEFAULT_PERIOD);
            let value = format!("{} {period}", or_max(quota));
            settings.push(setting("cpu", "cpu.max", value));
        }
        if let Some(memory) = self.memory.filter(|memory| *memory != 0) {
            settings.push(setting("memory", "memory.max", or_max(memory)));
        }
        if let Some(limit) = self.pids {
            settings.push(setting("pids", "pids.max", or_max(pids(limit))));
        }
        self.huge_pages(page_sizes, "max", &mut settings);
        for (file, value) in &self.unified {
            let controller = file.split('.').next().unwrap_or_default();
            settings.push(setting(controller, file, value));
        }
        settings
    }

    /// The CPU and memory limits of both, each as high as the higher one.
    pub(crate) fn at_least(&self, other: &Self) -> Self {
        let higher = |a: Option<i64>, b: Option<i64>| match (a, b) {
            (Some(a), Some(b)) if a < 0 || b < 0 => Some(a.min(b)),
            (a, b) => a.max(b),
        };
        Self {
            cpu_shares: self.cpu_shares.max(other.cpu_shares),
            cpu_quota: higher(self.cpu_quota, other.cpu_quota),
            cpu_period: self.cpu_period.or(other.cpu_period),
            memory: higher(self.memory, other.memory),
            ..Self::default()
        }
    }

    /// The CPU and memory limits alone.
    pub(crate) fn cpu_and_memory(&self) -> Self {
        self.at_least(&Self::default())
    }

    fn huge_pages(&self, page_sizes: &[u64], file: &str, settings: &mut Vec<Setting>) {
        let Some(limits) = &self.huge_pages else {
            return;
        };
        for size in page_sizes {
            let limit = limits.get(size).copied().unwrap_or_default();
            let size = huge_pages::size_name(*size);
            for (reservation, optional) in [("", false), (".rsvd", true)] {
                settings.push(Setting {
                    controller: "hugetlb",
                    file: format!("hugetlb.{size}{reservation}.{file}").into(),
                    value: limit.to_string(),
                    optional,
                });
            }
        }
    }
}

/// The kernel's default, in microseconds.
const DEFAULT_PERIOD: i64 = 100_000;

/// A quota of 0 is written as no limit.
const fn unlimited_if_zero(quota: i64) -> i64 {
    if quota == 0 { -1 } else { quota }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_SIZES: [u64; 2] = [2 << 20, 1 << 30];

    fn shown(settings: Vec<Setting>) -> Vec<String> {
        settings
            .iter()
            .map(|one| format!("{}: {}={}", one.controller, one.file, one.value))
            .collect()
    }

    fn both(config: &CgroupConfig) -> [Vec<String>; 2] {
        [shown(config.v1(&[])), shown(config.v2(&[]))]
    }

    #[test]
    fn what_is_not_set_is_left() {
        assert_eq!(both(&CgroupConfig::default()), [[""; 0], [""; 0]]);
    }

    #[test]
    fn each_limit_in_both_versions() {
        let none = CgroupConfig::default;
        for (config, v1, v2) in [
            (
                CgroupConfig {
                    cpu_shares: Some(512),
                    ..none()
                },
                vec!["cpu: cpu.shares=512"],
                vec!["cpu: cpu.weight=20"],
            ),
            (
                CgroupConfig {
                    cpu_quota: Some(50_000),
                    cpu_period: Some(100_000),
                    ..none()
                },
                vec![
                    "cpu: cpu.cfs_period_us=100000",
                    "cpu: cpu.cfs_quota_us=50000",
                ],
                vec!["cpu: cpu.max=50000 100000"],
            ),
            (
                CgroupConfig {
                    cpu_quota: Some(-1),
                    cpu_period: Some(20_000),
                    ..none()
                },
                vec!["cpu: cpu.cfs_period_us=20000", "cpu: cpu.cfs_quota_us=-1"],
                vec!["cpu: cpu.max=max 20000"],
            ),
            (
                CgroupConfig {
                    cpu_quota: Some(0),
                    cpu_period: Some(100_000),
                    ..none()
                },
                vec!["cpu: cpu.cfs_period_us=100000", "cpu: cpu.cfs_quota_us=-1"],
                vec!["cpu: cpu.max=max 100000"],
            ),
            (
                CgroupConfig {
                    memory: Some(1 << 20),
                    ..none()
                },
                vec!["memory: memory.limit_in_bytes=1048576"],
                vec!["memory: memory.max=1048576"],
            ),
            (
                CgroupConfig {
                    memory: Some(-1),
                    ..none()
                },
                vec!["memory: memory.limit_in_bytes=-1"],
                vec!["memory: memory.max=max"],
            ),
            (
                CgroupConfig {
                    memory: Some(0),
                    ..none()
                },
                vec![],
                vec![],
            ),
            (
                CgroupConfig {
                    pids: Some(7),
                    ..none()
                },
                vec!["pids: pids.max=7"],
                vec!["pids: pids.max=7"],
            ),
            (
                CgroupConfig {
                    pids: Some(0),
                    ..none()
                },
                vec!["pids: pids.max=1"],
                vec!["pids: pids.max=1"],
            ),
            (
                CgroupConfig {
                    pids: Some(-1),
                    ..none()
                },
                vec!["pids: pids.max=max"],
                vec!["pids: pids.max=max"],
            ),
            (
                CgroupConfig {
                    unified: [("memory.min", "5".to_owned())].into(),
                    ..none()
                },
                vec![],
                vec!["memory: memory.min=5"],
            ),
        ] {
            assert_eq!(both(&config), [v1, v2], "{config:?}");
        }
    }

    #[test]
    fn the_higher_limits_of_two() {
        let limits = |quota, memory| CgroupConfig {
            cpu_shares: Some(quota / 100),
            cpu_quota: Some(quota),
            memory: Some(memory),
            pids: Some(1),
            ..CgroupConfig::default()
        };
        let both = limits(1000, 50).at_least(&limits(2000, 40));
        assert_eq!(
            (both.cpu_shares, both.cpu_quota, both.memory, both.pids),
            (Some(20), Some(2000), Some(50), None)
        );
        let unlimited = limits(1000, 50).at_least(&limits(-1, -1));
        assert_eq!(
            (unlimited.cpu_quota, unlimited.memory),
            (Some(-1), Some(-1))
        );
        let unset = limits(1000, 50).at_least(&CgroupConfig::default());
        assert_eq!((unset.cpu_quota, unset.memory), (Some(1000), Some(50)));
    }

    #[test]
    fn huge_pages_of_other_sizes_are_limited_to_none() {
        let config = CgroupConfig {
            huge_pages: Some([(2 << 20, 4 << 20)].into()),
            ..CgroupConfig::default()
        };
        assert_eq!(
            shown(config.v1(&PAGE_SIZES)),
            [
                "hugetlb: hugetlb.2MB.limit_in_bytes=4194304",
                "hugetlb: hugetlb.2MB.rsvd.limit_in_bytes=4194304",
                "hugetlb: hugetlb.1GB.limit_in_bytes=0",
                "hugetlb: hugetlb.1GB.rsvd.limit_in_bytes=0",
            ]
        );
        let v2 = shown(config.v2(&PAGE_SIZES));
        assert_eq!(v2[0], "hugetlb: hugetlb.2MB.max=4194304");
        assert_eq!(v2[3], "hugetlb: hugetlb.1GB.rsvd.max=0");
    }
}
