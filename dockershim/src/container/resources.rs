//! Limits as the engine has them.

use bollard::models::HostConfig;
use cri_proto::runtime::v1::{HugepageLimit, LinuxContainerResources};

use super::unified::Unified;
use crate::Error;

const FIELD: &str = "config.linux.resources";

/// Puts the limits into what the engine is asked to create; 0 is no limit.
/// `oom_score_adj` is left to the caller, and so is `unified`, which is returned.
///
/// # Errors
/// `Unsupported` for a huge page limit.
pub fn apply(resources: LinuxContainerResources, host: &mut HostConfig) -> Result<Unified, Error> {
    refuse_hugepages(&resources.hugepage_limits)?;
    let limit = |value: i64| (value != 0).then_some(value);
    let set = |value: String| (!value.is_empty()).then_some(value);
    host.cpu_period = limit(resources.cpu_period);
    host.cpu_quota = limit(resources.cpu_quota);
    host.cpu_shares = limit(resources.cpu_shares);
    host.cpuset_cpus = set(resources.cpuset_cpus);
    host.cpuset_mems = set(resources.cpuset_mems);
    host.memory = limit(resources.memory_limit_in_bytes);
    // The engine counts swap on top of memory. Without a word on swap there is none.
    host.memory_swap = host
        .memory
        .map(|memory| limit(resources.memory_swap_limit_in_bytes).unwrap_or(memory));
    Ok(resources.unified)
}

/// The kubelet names every page size of the node, with a limit of 0 for a pod that uses
/// none; the pod's own cgroup, which the kubelet makes, holds it to that.
fn refuse_hugepages(limits: &[HugepageLimit]) -> Result<(), Error> {
    match limits.iter().find(|limit| limit.limit > 0) {
        None => Ok(()),
        Some(limit) => Err(Error::unsupported(
            format!("{FIELD}.hugepage_limits"),
            format!(
                "the Docker engine cannot limit huge pages of {}",
                limit.page_size
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_without_a_word_on_swap_has_none() {
        let resources = |memory, swap| LinuxContainerResources {
            memory_limit_in_bytes: memory,
            memory_swap_limit_in_bytes: swap,
            ..Default::default()
        };
        for (memory, swap, expected) in [
            (100, 0, (Some(100), Some(100))),
            (100, 150, (Some(100), Some(150))),
            (100, -1, (Some(100), Some(-1))),
            (0, 0, (None, None)),
        ] {
            let mut host = HostConfig::default();
            apply(resources(memory, swap), &mut host).unwrap();
            assert_eq!((host.memory, host.memory_swap), expected);
        }
    }

    #[test]
    fn a_huge_page_limit_is_refused_by_name() {
        let with = |limit| LinuxContainerResources {
            hugepage_limits: vec![HugepageLimit {
                page_size: "2MB".into(),
                limit,
            }],
            ..Default::default()
        };
        assert!(apply(with(0), &mut HostConfig::default()).is_ok());
        let error = apply(with(1), &mut HostConfig::default()).unwrap_err();
        assert!(error.to_string().contains("hugepage_limits"), "{error}");
    }
}
