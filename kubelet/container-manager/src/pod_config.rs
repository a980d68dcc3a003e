//! The limits of a pod's cgroup, from its spec.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodSpec;
use kubelet_pod_spec::{
    cpu::{self, MIN_SHARES},
    huge_pages,
    qos::QosClass,
    resources::{self, Amounts, millis, units},
};

use crate::{PodCgroupOptions, cgroup::CgroupConfig, options::MemoryReservationPolicy};

/// The limits of the pod's cgroup: those of its containers, init containers and overhead together,
/// or its pod-level ones. A resource is limited only if no container may use it without limit.
pub(crate) fn of_pod(spec: &PodSpec, options: &PodCgroupOptions, is_v2: bool) -> CgroupConfig {
    let requests = resources::requests(spec);
    let class = QosClass::of(spec);
    let request = |name: &str| requests.get(name).copied().unwrap_or_default();
    let limit = |name: &str| resources::limit(spec, name);
    let is_limited =
        |name: &str| class == QosClass::Guaranteed || resources::is_limited(spec, name);
    let mut config = CgroupConfig {
        cpu_shares: Some(cpu::shares(millis(request("cpu")))),
        pids: options.pids_limit,
        huge_pages: Some(page_limits(&requests)),
        ..CgroupConfig::default()
    };
    if class == QosClass::BestEffort {
        config.cpu_shares = Some(MIN_SHARES);
        return config;
    }
    if is_limited("cpu") {
        let period = i64::try_from(options.cpu_cfs_quota_period.as_micros()).unwrap_or(i64::MAX);
        config.cpu_period = Some(period);
        config.cpu_quota = Some(if options.cpu_cfs_quota {
            cpu::quota(millis(limit("cpu")), period)
        } else {
            NO_LIMIT
        });
    }
    if is_limited("memory") {
        config.memory = Some(units(limit("memory")));
    }
    let reserved = units(request("memory"));
    if is_v2 && options.memory_qos == Some(MemoryReservationPolicy::Tiered) && reserved > 0 {
        let file = match class {
            QosClass::Guaranteed => "memory.min",
            _ => "memory.low",
        };
        config.unified.insert(file, reserved.to_string());
    }
    config
}

const NO_LIMIT: i64 = -1;

/// The bytes of huge pages by page size.
fn page_limits(requests: &Amounts) -> BTreeMap<u64, u64> {
    let mut limits = BTreeMap::<u64, u64>::new();
    for (name, amount) in requests {
        if let Some(size) = huge_pages::page_size(name) {
            let limit = limits.entry(size).or_default();
            *limit = limit.saturating_add(u64::try_from(units(*amount)).unwrap_or_default());
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: i64 = 1 << 20;

    fn config_with(spec: Value, options: &PodCgroupOptions) -> CgroupConfig {
        of_pod(&serde_json::from_value(spec).unwrap(), options, true)
    }

    fn config(spec: Value) -> CgroupConfig {
        config_with(spec, &PodCgroupOptions::default())
    }

    /// Shares, quota and memory.
    fn values(spec: Value) -> (Option<i64>, Option<i64>, Option<i64>) {
        let config = config(spec);
        (config.cpu_shares, config.cpu_quota, config.memory)
    }

    fn container(resources: Value) -> Value {
        json!({"name": "c", "resources": resources})
    }

    #[test]
    fn each_class() {
        for (containers, expected) in [
            (json!([container(json!({}))]), (Some(2), None, None)),
            (
                json!([container(
                    json!({"limits": {"cpu": "500m", "memory": "100Mi"}, "requests": {"cpu": "500m", "memory": "100Mi"}})
                )]),
                (Some(512), Some(50_000), Some(100 * MIB)),
            ),
            (
                json!([container(json!({"requests": {"cpu": "1"}}))]),
                (Some(1024), None, None),
            ),
            (
                json!([container(json!({"limits": {"memory": "10Mi"}}))]),
                (Some(2), None, Some(10 * MIB)),
            ),
            // One container without a limit: the pod has none.
            (
                json!([
                    container(
                        json!({"limits": {"cpu": "1", "memory": "10Mi"}, "requests": {"cpu": "1"}})
                    ),
                    container(json!({"limits": {"memory": "5Mi"}}))
                ]),
                (Some(1024), None, Some(15 * MIB)),
            ),
        ] {
            let spec = json!({"containers": containers});
            assert_eq!(values(spec.clone()), expected, "{spec}");
        }
    }

    #[test]
    fn init_containers_sidecars_and_overhead_count() {
        let limits = |memory: &str| {
            container(
                json!({"limits": {"cpu": "1", "memory": memory}, "requests": {"cpu": "1", "memory": memory}}),
            )
        };
        let mut sidecar = limits("10Mi");
        sidecar["restartPolicy"] = json!("Always");
        let spec = json!({
            "overhead": {"cpu": "250m", "memory": "1Mi"},
            "initContainers": [sidecar, limits("100Mi")],
            "containers": [limits("50Mi")],
        });
        // The second init container needs more than the container, each beside the sidecar.
        assert_eq!(
            values(spec.clone()),
            (Some(2304), Some(225_000), Some(111 * MIB))
        );
        let mut unlimited = spec;
        unlimited["initContainers"][1]["resources"]["limits"] = json!({"cpu": "1"});
        assert_eq!(values(unlimited), (Some(2304), Some(225_000), None));
    }

    #[test]
    fn pod_level_resources_take_precedence() {
        let spec = json!({
            "resources": {"limits": {"cpu": "2", "memory": "64Mi"}, "requests": {"cpu": "1"}},
            "containers": [container(json!({"requests": {"cpu": "100m"}})), container(json!({}))],
        });
        assert_eq!(values(spec), (Some(1024), Some(200_000), Some(64 * MIB)));
    }

    #[test]
    fn huge_pages_are_those_of_the_requests() {
        let pages = json!({"memory": "1Gi", "cpu": "1", "hugepages-2Mi": "4Mi"});
        let found = config(json!({"containers": [
            container(json!({"limits": pages, "requests": pages})),
            container(json!({"limits": {"hugepages-2Mi": "2Mi"}, "requests": {"hugepages-2Mi": "2Mi"}})),
        ]}));
        assert_eq!(found.huge_pages, Some([(2 << 20, 6 << 20)].into()));
        let none = config(json!({"containers": [container(json!({}))]}));
        assert_eq!(none.huge_pages, Some(BTreeMap::new()));
    }

    #[test]
    fn options_of_the_node() {
        let guaranteed = json!({"containers": [container(json!({"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "1", "memory": "64Mi"}}))]});
        let options = PodCgroupOptions {
            cpu_cfs_quota: false,
            pids_limit: Some(100),
            memory_qos: Some(MemoryReservationPolicy::Tiered),
            ..PodCgroupOptions::default()
        };
        let found = config_with(guaranteed.clone(), &options);
        assert_eq!((found.cpu_quota, found.pids), (Some(-1), Some(100)));
        let reserved = (64 * MIB).to_string();
        assert_eq!(found.unified, [("memory.min", reserved.clone())].into());
        let burstable = json!({"containers": [container(json!({"requests": {"memory": "64Mi"}}))]});
        let found = config_with(burstable, &options);
        assert_eq!(found.unified, [("memory.low", reserved)].into());
        let v1 = of_pod(
            &serde_json::from_value(guaranteed).unwrap(),
            &options,
            false,
        );
        assert!(v1.unified.is_empty());
    }
}
