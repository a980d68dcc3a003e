//! Huge page limits.

use cri_proto::runtime::v1::HugepageLimit;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_pod_spec::{
    quantity,
    resources::{Amounts, amounts, units},
};

const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];

/// One limit for each huge page size of the machine: the container's limit, else the pod's, else
/// zero.
pub(super) fn limits(
    own: &ResourceRequirements,
    of_pod: &Amounts,
    sizes: &[u64],
) -> Vec<HugepageLimit> {
    let mut asked = of_pod.clone();
    asked.extend(own.limits.as_ref().map(amounts).unwrap_or_default());
    sizes
        .iter()
        .map(|size| {
            let found = asked
                .iter()
                .find(|(name, _)| page_size(name) == Some(*size));
            let limit = found.map_or(0, |(_, amount)| units(*amount));
            HugepageLimit {
                page_size: name_of_size(*size),
                limit: u64::try_from(limit).unwrap_or_default(),
            }
        })
        .collect()
}

/// The page size in bytes of a resource `hugepages-<size>`.
fn page_size(name: &str) -> Option<u64> {
    let size = name.strip_prefix("hugepages-")?;
    u64::try_from(units(quantity::parse(size).ok()?)).ok()
}

/// A size as in names of cgroup files, such as `2MB`.
fn name_of_size(mut bytes: u64) -> String {
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
            assert_eq!(name_of_size(bytes), name);
        }
        assert_eq!(page_size("hugepages-1Gi"), Some(1 << 30));
        assert_eq!(page_size("memory"), None);
    }
}
