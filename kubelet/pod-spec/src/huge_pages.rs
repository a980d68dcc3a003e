//! Huge page resources (`hugepages-<size>`) and the names of their sizes in cgroup files.

use crate::{quantity, resources::units};

const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];

/// The page size in bytes of a resource `hugepages-<size>`; `None` for other resources.
pub fn page_size(resource: &str) -> Option<u64> {
    let size = resource.strip_prefix("hugepages-")?;
    u64::try_from(units(quantity::parse(size).ok()?)).ok()
}

/// A size in bytes as in the names of cgroup files, such as `2MB`.
pub fn size_name(mut bytes: u64) -> String {
    let mut unit = 0;
    while bytes != 0 && bytes.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        bytes /= 1024;
        unit += 1;
    }
    format!("{bytes}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_as_the_cgroup_files_are() {
        for (bytes, name) in [
            (64 << 10, "64KB"),
            (2 << 20, "2MB"),
            (1 << 30, "1GB"),
            (16 << 30, "16GB"),
        ] {
            assert_eq!(size_name(bytes), name);
        }
        assert_eq!(page_size("hugepages-1Gi"), Some(1 << 30));
        assert_eq!(page_size("memory"), None);
    }
}
