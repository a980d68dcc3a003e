//! The limits of the QoS classes' cgroups.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{
    cpu::{self, MIN_SHARES},
    qos::QosClass,
    resources::{self, Amounts, millis, units},
};

use crate::{cgroup::CgroupConfig, options::MemoryReservationPolicy};

/// More than any machine has: pods are limited, their classes are not.
const UNBOUNDED_PAGES: u64 = 1 << 62;

/// The limits of each class. Guaranteed pods have no cgroup of their class: theirs are in the
/// cgroup of all pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QosConfigs {
    pub(crate) guaranteed: CgroupConfig,
    pub(crate) burstable: CgroupConfig,
    pub(crate) best_effort: CgroupConfig,
}

/// The limits for the pods that are active.
pub(crate) fn of_pods(
    pods: &[Arc<Pod>],
    page_sizes: &[u64],
    reservation: MemoryReservationPolicy,
    is_v2: bool,
) -> QosConfigs {
    let huge_pages: BTreeMap<u64, u64> = page_sizes
        .iter()
        .map(|size| (*size, UNBOUNDED_PAGES))
        .collect();
    let unbounded = CgroupConfig {
        huge_pages: Some(huge_pages),
        ..CgroupConfig::default()
    };
    let guaranteed = requests(pods, QosClass::Guaranteed);
    let burstable = requests(pods, QosClass::Burstable);
    let amount = |amounts: &Amounts, name: &str| amounts.get(name).copied().unwrap_or_default();
    let mut configs = QosConfigs {
        guaranteed: unbounded.clone(),
        burstable: CgroupConfig {
            cpu_shares: Some(cpu::shares(millis(amount(&burstable, "cpu")))),
            ..unbounded.clone()
        },
        best_effort: CgroupConfig {
            cpu_shares: Some(MIN_SHARES),
            ..unbounded
        },
    };
    if is_v2 && reservation == MemoryReservationPolicy::Tiered {
        let [guaranteed, burstable] = [&guaranteed, &burstable].map(|all| amount(all, "memory"));
        // A cgroup protects no more of its children than it is protected itself.
        let all = units(guaranteed.saturating_add(burstable));
        configs.guaranteed.unified = [("memory.min", all.to_string())].into();
        configs.burstable.unified = [("memory.low", units(burstable).to_string())].into();
    }
    configs
}

/// The sum of the requests of the pods of a class.
fn requests(pods: &[Arc<Pod>], class: QosClass) -> Amounts {
    let mut total = Amounts::new();
    let specs = pods.iter().filter_map(|pod| pod.spec.as_ref());
    for spec in specs.filter(|spec| QosClass::of(spec) == class) {
        for (name, amount) in resources::requests(spec) {
            let sum = total.entry(name).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(resources: Value) -> Arc<Pod> {
        let pod = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn pods() -> Vec<Arc<Pod>> {
        let exact = json!({"cpu": "1", "memory": "10Mi"});
        vec![
            pod(json!({"requests": exact, "limits": exact})),
            pod(json!({"requests": {"cpu": "250m", "memory": "1Mi"}})),
            pod(json!({"requests": {"cpu": "250m"}})),
            pod(json!({})),
        ]
    }

    #[test]
    fn burstable_pods_have_the_weight_of_their_requests() {
        let configs = of_pods(&pods(), &[2 << 20], MemoryReservationPolicy::None, true);
        assert_eq!(configs.guaranteed.cpu_shares, None);
        assert_eq!(configs.burstable.cpu_shares, Some(512));
        assert_eq!(configs.best_effort.cpu_shares, Some(2));
        let pages = Some([(2 << 20, 1 << 62)].into());
        for config in [
            &configs.guaranteed,
            &configs.burstable,
            &configs.best_effort,
        ] {
            assert_eq!(config.huge_pages, pages);
            assert!(config.unified.is_empty());
        }
        let none = of_pods(&[], &[], MemoryReservationPolicy::None, true);
        assert_eq!(none.burstable.cpu_shares, Some(2));
    }

    #[test]
    fn tiers_protect_requested_memory() {
        let tiered = MemoryReservationPolicy::Tiered;
        let configs = of_pods(&pods(), &[], tiered, true);
        let all = (11 << 20).to_string();
        assert_eq!(configs.guaranteed.unified, [("memory.min", all)].into());
        let burstable = (1 << 20).to_string();
        assert_eq!(
            configs.burstable.unified,
            [("memory.low", burstable)].into()
        );
        assert!(configs.best_effort.unified.is_empty());
        let v1 = of_pods(&pods(), &[], tiered, false);
        assert!(v1.guaranteed.unified.is_empty() && v1.burstable.unified.is_empty());
    }
}
