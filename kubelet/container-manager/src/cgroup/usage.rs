//! Reads the memory that a cgroup uses; blocking.

use std::path::Path;

use super::{CgroupError, files, hierarchy::Hierarchy};

/// Bytes of memory that a cgroup uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All of it.
    pub total: i64,
    /// Without file pages that were not used for long, which the kernel reclaims first.
    pub working_set: i64,
}

/// The memory in use; nothing if the kernel does not count it.
///
/// # Errors
/// A file cannot be read.
pub(super) fn read(hierarchy: &Hierarchy, relative: &Path) -> Result<MemoryUsage, CgroupError> {
    let (total, inactive) = if hierarchy.is_v2() {
        ("memory.current", "inactive_file")
    } else {
        ("memory.usage_in_bytes", "total_inactive_file")
    };
    let text = |file| files::text(hierarchy, "memory", relative, file);
    let total = text(total)?.unwrap_or_default();
    let total = total.trim().parse().unwrap_or_default();
    let inactive = field(&text("memory.stat")?.unwrap_or_default(), inactive);
    Ok(MemoryUsage {
        total,
        working_set: total.saturating_sub(inactive).max(0),
    })
}

/// A field of `memory.stat`; zero if there is none.
fn field(stat: &str, name: &str) -> i64 {
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    let value = lines.find(|(field, _)| *field == name);
    value
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs};

    use super::*;

    #[test]
    fn old_file_pages_are_no_part_of_the_working_set() {
        let root = tempfile::tempdir().unwrap();
        let cgroup = root.path().join("a");
        fs::create_dir(&cgroup).unwrap();
        let stat = "anon 10\ninactive_file 30\ntotal_inactive_file 40\n";
        for (file, text) in [
            ("memory.current", "100\n"),
            ("memory.usage_in_bytes", "100\n"),
            ("memory.stat", stat),
        ] {
            fs::write(cgroup.join(file), text).unwrap();
        }
        let v2 = Hierarchy::V2 {
            root: root.path().to_owned(),
            controllers: vec!["memory".to_owned()],
        };
        let v1 = Hierarchy::V1 {
            all: vec![root.path().to_owned()],
            controllers: BTreeMap::from([("memory".to_owned(), root.path().to_owned())]),
            hybrid: None,
        };
        for (hierarchy, working_set) in [(v2, 70), (v1, 60)] {
            let usage = read(&hierarchy, Path::new("a")).unwrap();
            let expected = MemoryUsage {
                total: 100,
                working_set,
            };
            assert_eq!(usage, expected);
            assert!(read(&hierarchy, Path::new("b")).is_err());
        }
    }
}
