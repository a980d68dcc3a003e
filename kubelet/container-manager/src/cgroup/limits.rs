//! Reads the limits of a cgroup; blocking.

use std::path::Path;

use kubelet_pod_spec::cpu;

use super::{CgroupConfig, CgroupError, files, hierarchy::Hierarchy};

/// cgroup v1 has no word for no limit; it is a number close to the largest one.
const V1_UNLIMITED: i64 = i64::MAX / 2;

/// The CPU and memory limits that are in force.
///
/// # Errors
/// A file cannot be read.
pub(super) fn read(hierarchy: &Hierarchy, relative: &Path) -> Result<CgroupConfig, CgroupError> {
    let text = |controller, file| files::text(hierarchy, controller, relative, file);
    let number = |controller, file| Ok(text(controller, file)?.as_deref().and_then(parse));
    let mut config = CgroupConfig::default();
    if hierarchy.is_v2() {
        config.cpu_shares = number("cpu", "cpu.weight")?.map(cpu::weight_to_shares);
        if let Some(max) = text("cpu", "cpu.max")? {
            let mut parts = max.split_whitespace();
            config.cpu_quota = parts.next().and_then(parse);
            config.cpu_period = parts.next().and_then(parse);
        }
        config.memory = number("memory", "memory.max")?;
    } else {
        config.cpu_shares = number("cpu", "cpu.shares")?;
        config.cpu_quota = number("cpu", "cpu.cfs_quota_us")?;
        config.cpu_period = number("cpu", "cpu.cfs_period_us")?;
        let memory = number("memory", "memory.limit_in_bytes")?;
        config.memory = memory.map(|limit| if limit >= V1_UNLIMITED { -1 } else { limit });
    }
    Ok(config)
}

/// A number; -1 for `max`.
fn parse(text: &str) -> Option<i64> {
    match text.trim() {
        "max" => Some(-1),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;

    fn cgroup(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        for (file, value) in files {
            fs::write(root.path().join("a").join(file), value).unwrap();
        }
        root
    }

    fn found(hierarchy: &Hierarchy) -> [Option<i64>; 4] {
        let config = read(hierarchy, Path::new("a")).unwrap();
        [
            config.cpu_shares,
            config.cpu_quota,
            config.cpu_period,
            config.memory,
        ]
    }

    #[test]
    fn both_versions_are_read_in_the_same_units() {
        for (quota, memory, expected) in [
            (
                "50000 100000",
                "1048576",
                [Some(1024), Some(50_000), Some(100_000), Some(1 << 20)],
            ),
            (
                "max 100000",
                "max",
                [Some(1024), Some(-1), Some(100_000), Some(-1)],
            ),
        ] {
            let files = [
                ("cpu.weight", "39\n"),
                ("cpu.max", quota),
                ("memory.max", memory),
            ];
            let root = cgroup(&files);
            let v2 = Hierarchy::V2 {
                root: root.path().to_owned(),
                controllers: ["cpu", "memory"].map(str::to_owned).into(),
            };
            let mut found = found(&v2);
            // The weight is coarser than the shares.
            assert!((998..=1024).contains(&found[0].unwrap()), "{found:?}");
            found[0] = Some(1024);
            assert_eq!(found, expected);
        }
        for (quota, memory, expected) in [
            (
                "50000",
                "1048576",
                [Some(1024), Some(50_000), Some(100_000), Some(1 << 20)],
            ),
            (
                "-1",
                "9223372036854771712",
                [Some(1024), Some(-1), Some(100_000), Some(-1)],
            ),
        ] {
            let root = cgroup(&[
                ("cpu.shares", "1024"),
                ("cpu.cfs_quota_us", quota),
                ("cpu.cfs_period_us", "100000"),
                ("memory.limit_in_bytes", memory),
            ]);
            let controllers =
                ["cpu", "memory"].map(|name| (name.to_owned(), root.path().to_owned()));
            let v1 = Hierarchy::V1 {
                all: vec![root.path().to_owned()],
                controllers: BTreeMap::from(controllers),
                hybrid: None,
            };
            assert_eq!(found(&v1), expected);
        }
    }
}
