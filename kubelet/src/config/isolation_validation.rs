//! Validation of the fields that isolate pods from the node.

use kubelet_pod_spec::sysctl;

use super::kubelet_configuration::KubeletConfiguration;
use crate::host;

/// The ID count of a user namespace must be a multiple of this.
const IDS: i64 = 65_536;

/// The faults of a configuration: field, value and what is allowed.
pub(super) fn validate(config: &KubeletConfiguration) -> Vec<String> {
    validate_on(host::is_cgroup_v2(), config)
}

fn validate_on(is_v2: bool, config: &KubeletConfiguration) -> Vec<String> {
    let mut faults = Vec::new();
    for (index, pattern) in config.allowed_unsafe_sysctls.iter().enumerate() {
        if let Err(rule) = sysctl::check_pattern(pattern) {
            faults.push(format!(
                "allowedUnsafeSysctls[{index}]: invalid value {pattern:?}: {rule}"
            ));
        }
    }
    let namespaces = config.user_namespaces.as_ref();
    if let Some(ids) = namespaces.and_then(|namespaces| namespaces.ids_per_pod)
        && (ids < IDS || ids % IDS != 0 || ids > i64::from(u32::MAX))
    {
        faults.push(format!(
            "userNamespaces.idsPerPod: invalid value {ids}: must be a multiple of {IDS}, and less than 4294967296"
        ));
    }
    if config.memory_swap.swap_behavior == "LimitedSwap" && !is_v2 {
        faults.push(
            "memorySwap.swapBehavior: invalid value \"LimitedSwap\": requires cgroup v2".to_owned(),
        );
    }
    if config.single_process_oom_kill == Some(false) && !is_v2 {
        faults.push(
            "singleProcessOOMKill: invalid value false: must not be false on cgroup v1".to_owned(),
        );
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_not_keep_pods_apart_is_refused() {
        let faults = |json: serde_json::Value| {
            let config = serde_json::from_value(json).unwrap();
            validate_on(true, &config)
        };
        assert!(faults(serde_json::json!({})).is_empty());
        let sysctls = faults(serde_json::json!({"allowedUnsafeSysctls": ["net.*", "vm.*"]}));
        assert_eq!(
            sysctls,
            ["allowedUnsafeSysctls[1]: invalid value \"vm.*\": is not known to be namespaced"]
        );
        for (ids, right) in [(65_536, true), (131_072, true), (0, false), (65_537, false)] {
            let found = faults(serde_json::json!({"userNamespaces": {"idsPerPod": ids}}));
            assert_eq!(found.is_empty(), right, "{ids}");
        }
    }
    #[test]
    fn what_needs_cgroup_v2_is_refused_with_v1() {
        for (json, field) in [
            (
                serde_json::json!({"memorySwap": {"swapBehavior": "LimitedSwap"}}),
                "memorySwap.swapBehavior",
            ),
            (
                serde_json::json!({"singleProcessOOMKill": false}),
                "singleProcessOOMKill",
            ),
        ] {
            let config = serde_json::from_value(json).unwrap();
            assert!(validate_on(true, &config).is_empty(), "{field}");
            let faults = validate_on(false, &config);
            assert!(
                faults.len() == 1 && faults[0].starts_with(field),
                "{faults:?}"
            );
        }
    }
}
