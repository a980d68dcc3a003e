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
const UNLIMITED: i64 = -1;
/// A limit of nothing would mean no limit.
const LEAST_MEMORY: i64 = 1 << 20;

/// The limits of each class. Guaranteed pods have no cgroup of their class: theirs are in the
/// cgroup of all pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QosConfigs {
    pub(crate) guaranteed: CgroupConfig,
    pub(crate) burstable: CgroupConfig,
    pub(crate) best_effort: CgroupConfig,
    /// The memory that is protected from reclaim.
    pub(crate) protected: Protected,
}

/// Bytes of memory that are protected from reclaim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Protected {
    /// Hard, for guaranteed pods.
    pub(crate) min: i64,
    /// Soft, for burstable pods.
    pub(crate) low: i64,
}

/// What the limits depend on beside the pods.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QosRules<'a> {
    /// The machine's sizes of huge pages, in bytes.
    pub(crate) page_sizes: &'a [u64],
    /// Protection of requested memory. None with cgroup v1.
    pub(crate) memory_qos: Option<MemoryReservationPolicy>,
    /// Memory that lower classes cannot use.
    pub(crate) reserve: Option<MemoryReserve>,
}

/// Memory that lower classes cannot use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryReserve {
    /// The reserved part of the requests of a class.
    pub(crate) percent: i64,
    /// The memory of all pods, in bytes.
    pub(crate) allocatable: i64,
}

/// The limits that do not depend on pods, as of a kubelet that does not know its pods yet. What an
/// earlier configuration set and this one does not is reset.
pub(crate) fn without_pods(rules: QosRules<'_>, is_v2: bool) -> QosConfigs {
    let mut configs = of_pods(
        &[],
        QosRules {
            reserve: None,
            ..rules
        },
    );
    configs.burstable.cpu_shares = None;
    for config in [&mut configs.burstable, &mut configs.best_effort] {
        config.memory = rules.reserve.is_none().then_some(UNLIMITED);
    }
    let resets = is_v2 && rules.memory_qos != Some(MemoryReservationPolicy::Tiered);
    configs.protect(resets.then(Protected::default));
    configs
}

/// The limits for the pods that are active.
pub(crate) fn of_pods(pods: &[Arc<Pod>], rules: QosRules<'_>) -> QosConfigs {
    let pages = rules.page_sizes.iter();
    let huge_pages: BTreeMap<u64, u64> = pages.map(|size| (*size, UNBOUNDED_PAGES)).collect();
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
        protected: Protected::default(),
    };
    let requested = Protected {
        min: units(amount(&guaranteed, "memory")),
        low: units(amount(&burstable, "memory")),
    };
    configs.protect(rules.memory_qos.map(|policy| match policy {
        MemoryReservationPolicy::Tiered => requested,
        MemoryReservationPolicy::None => Protected::default(),
    }));
    if let Some(MemoryReserve {
        percent,
        allocatable,
    }) = rules.reserve.filter(|reserve| reserve.allocatable > 0)
    {
        let reserved = |memory: i64| memory.saturating_mul(percent) / 100;
        let below_guaranteed = allocatable.saturating_sub(reserved(requested.min));
        let below_burstable = below_guaranteed.saturating_sub(reserved(requested.low));
        configs.burstable.memory = Some(below_guaranteed.max(LEAST_MEMORY));
        configs.best_effort.memory = Some(below_burstable.max(LEAST_MEMORY));
    }
    configs
}

impl QosConfigs {
    fn protect(&mut self, protected: Option<Protected>) {
        let Some(protected) = protected else {
            self.guaranteed.unified.clear();
            self.burstable.unified.clear();
            return;
        };
        let Protected { min, low } = protected;
        // A cgroup protects no more of its children than it is protected itself.
        let all = min.saturating_add(low);
        self.guaranteed.unified = [("memory.min", all.to_string())].into();
        self.burstable.unified = [("memory.low", low.to_string())].into();
        self.protected = protected;
    }
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
        let rules = QosRules {
            page_sizes: &[2 << 20],
            ..QosRules::default()
        };
        let configs = of_pods(&pods(), rules);
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
            assert!(config.unified.is_empty() && config.memory.is_none());
        }
        let none = of_pods(&[], QosRules::default());
        assert_eq!(none.burstable.cpu_shares, Some(2));
    }

    fn unified(config: &CgroupConfig) -> Vec<(&'static str, &str)> {
        let values = config.unified.iter();
        values
            .map(|(file, value)| (*file, value.as_str()))
            .collect()
    }

    #[test]
    fn tiers_protect_requested_memory() {
        let with = |policy| QosRules {
            memory_qos: Some(policy),
            ..QosRules::default()
        };
        let configs = of_pods(&pods(), with(MemoryReservationPolicy::Tiered));
        assert_eq!(unified(&configs.guaranteed), [("memory.min", "11534336")]);
        assert_eq!(unified(&configs.burstable), [("memory.low", "1048576")]);
        assert!(configs.best_effort.unified.is_empty());
        let protected = Protected {
            min: 10 << 20,
            low: 1 << 20,
        };
        assert_eq!(configs.protected, protected);
        let configs = of_pods(&pods(), with(MemoryReservationPolicy::None));
        assert_eq!(unified(&configs.guaranteed), [("memory.min", "0")]);
        assert_eq!(unified(&configs.burstable), [("memory.low", "0")]);
        assert_eq!(configs.protected, Protected::default());
    }

    #[test]
    fn lower_classes_cannot_use_reserved_memory() {
        let memory = |percent, allocatable| {
            let rules = QosRules {
                reserve: Some(MemoryReserve {
                    percent,
                    allocatable,
                }),
                ..QosRules::default()
            };
            let configs = of_pods(&pods(), rules);
            assert_eq!(configs.guaranteed.memory, None);
            [configs.burstable.memory, configs.best_effort.memory]
        };
        let mib = |count: i64| Some(count << 20);
        assert_eq!(memory(0, 100 << 20), [mib(100), mib(100)]);
        assert_eq!(memory(100, 100 << 20), [mib(90), mib(89)]);
        assert_eq!(
            memory(50, 100 << 20),
            [mib(95), Some((95 << 20) - (1 << 19))]
        );
        // More is requested than pods may use.
        assert_eq!(memory(100, 5 << 20), [mib(1), mib(1)]);
        // What pods may use is unknown.
        assert_eq!(memory(100, 0), [None, None]);
    }

    #[test]
    fn what_an_earlier_configuration_set_is_reset() {
        let configs = without_pods(QosRules::default(), true);
        assert_eq!(configs.burstable.cpu_shares, None);
        assert_eq!(configs.burstable.memory, Some(-1));
        assert_eq!(configs.best_effort.memory, Some(-1));
        assert_eq!(unified(&configs.guaranteed), [("memory.min", "0")]);
        assert_eq!(unified(&configs.burstable), [("memory.low", "0")]);
        let rules = QosRules {
            memory_qos: Some(MemoryReservationPolicy::Tiered),
            reserve: Some(MemoryReserve {
                percent: 1,
                allocatable: 1 << 30,
            }),
            ..QosRules::default()
        };
        let configs = without_pods(rules, true);
        assert_eq!(configs.best_effort.memory, None);
        assert!(configs.guaranteed.unified.is_empty() && configs.burstable.unified.is_empty());
    }
}
