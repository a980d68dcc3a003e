//! The options of the cgroups of pods, from the configuration.

use kubelet_container_manager::{
    ContainerManagerOptions, Enforcement, MemoryReservationPolicy, PodCgroupOptions,
    SystemCgroupOptions, cgroup::Driver,
};
use kubelet_pod_spec::{
    quantity,
    resources::{Amounts, units},
};
use kubelet_runtime::resources::MemoryQos;

use super::{
    faults::Faults,
    feature_gates::{MEMORY_QOS, QOS_RESERVED, is_on},
    kubelet_configuration::{KubeletConfiguration, StringMap},
    values::span,
};
use crate::pod_cgroups::{
    limits,
    options::{CgroupOptions, CgroupSource},
};

const MEMORY: &str = "memory";
/// The value of `memoryReservationPolicy` that protects memory.
const TIERED: &str = "TieredReservation";

/// The options of a validated configuration; none if pods have no cgroups.
pub(super) fn cgroups(config: &KubeletConfiguration) -> Option<CgroupOptions> {
    if config.cgroups_per_qos == Some(false) {
        return None;
    }
    let default = PodCgroupOptions::default();
    let levels = config.enforce_node_allocatable.iter().flatten();
    Some(CgroupOptions {
        driver: match config.cgroup_driver.as_str() {
            "systemd" => Driver::Systemd,
            _ => Driver::Cgroupfs,
        },
        manager: ContainerManagerOptions {
            cgroup_root: config.cgroup_root.clone(),
            pods: PodCgroupOptions {
                cpu_cfs_quota: config.cpu_cfs_quota.unwrap_or(default.cpu_cfs_quota),
                cpu_cfs_quota_period: config
                    .cpu_cfs_quota_period
                    .map_or(default.cpu_cfs_quota_period, span),
                pids_limit: config.pod_pids_limit.filter(|limit| *limit > 0),
                memory_qos: memory_reservation(config),
            },
            enforce: levels
                .filter_map(|level| Enforcement::parse(level))
                .collect(),
            kube_reserved_cgroup: config.kube_reserved_cgroup.clone(),
            system_reserved_cgroup: config.system_reserved_cgroup.clone(),
            qos_reserved_memory: config
                .qos_reserved
                .get(MEMORY)
                .filter(|_| is_on(config, QOS_RESERVED))
                .and_then(|percentage| parse_percentage(percentage).ok()),
        },
        kube_reserved: limits::of_amounts(&amounts(&config.kube_reserved)),
        system_reserved: limits::of_amounts(&amounts(&config.system_reserved)),
        source: CgroupSource::Machine,
    })
}

/// How requested memory is protected; none without the feature gate.
fn memory_reservation(config: &KubeletConfiguration) -> Option<MemoryReservationPolicy> {
    is_on(config, MEMORY_QOS).then_some(match config.memory_reservation_policy.as_str() {
        TIERED => MemoryReservationPolicy::Tiered,
        _ => MemoryReservationPolicy::None,
    })
}

/// Throttling and protection of containers' memory; none without the feature gate.
pub(super) fn memory_qos(config: &KubeletConfiguration) -> Option<MemoryQos> {
    let reserved = [&config.system_reserved, &config.kube_reserved].map(|list| {
        let memory = amounts(list).get(MEMORY).copied();
        memory.map(units).unwrap_or_default()
    });
    Some(MemoryQos {
        reservation: memory_reservation(config)?,
        throttling_factor: config.memory_throttling_factor?,
        reserved: reserved[0].saturating_add(reserved[1]),
    })
}

/// Validates the fields of the cgroups of pods and their classes.
pub(super) fn validate(config: &KubeletConfiguration, faults: &mut Faults) {
    for (resource, percentage) in &config.qos_reserved {
        let field = format!("qosReserved[{resource}]");
        let shown = format_args!("{percentage:?}");
        if resource != MEMORY {
            faults.add(&field, shown, "must be a reservation of memory");
        } else if let Err(rule) = parse_percentage(percentage) {
            faults.add(&field, shown, rule);
        }
    }
    for (field, cgroup) in [
        ("kubeletCgroups", &config.kubelet_cgroups),
        ("systemCgroups", &config.system_cgroups),
    ] {
        if !cgroup.is_empty()
            && let Err(rule) = SystemCgroupOptions::check(cgroup)
        {
            faults.add(field, format_args!("{cgroup:?}"), rule);
        }
    }
    if config.memory_reservation_policy == TIERED && !is_on(config, MEMORY_QOS) {
        faults.add(
            "memoryReservationPolicy",
            format_args!("{TIERED:?}"),
            "requires featureGates.MemoryQoS to be true",
        );
    }
}

/// Warnings about fields without effect: without their feature gate, or with cgroup v1.
pub(super) fn warnings(config: &KubeletConfiguration, is_v2: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if !config.qos_reserved.is_empty() && !is_on(config, QOS_RESERVED) {
        warnings.push(
            "qosReserved (--qos-reserved) has no effect unless featureGates.QOSReserved is true"
                .to_owned(),
        );
    }
    let (own, reserved) = (&config.kubelet_cgroups, &config.kube_reserved_cgroup);
    if !own.is_empty() && !reserved.is_empty() && !own.starts_with(reserved) {
        warnings.push(format!(
            "kubeletCgroups {own:?} is not within kubeReservedCgroup {reserved:?}, so the \
             kubelet's resources do not count as kubeReserved"
        ));
    }
    if is_on(config, MEMORY_QOS) && !is_v2 {
        warnings.push("featureGates.MemoryQoS has no effect with cgroup v1".to_owned());
    }
    warnings
}

fn parse_percentage(text: &str) -> Result<i64, &'static str> {
    const RULE: &str = "must be a percentage from 0% to 100%";
    let number = text.strip_suffix('%').ok_or(RULE)?;
    match number.parse() {
        Ok(percent @ 0..=100) => Ok(percent),
        _ => Err(RULE),
    }
}

/// The cgroups of the node's daemons.
pub(super) fn system_cgroups(
    config: &KubeletConfiguration,
    runtime: Option<&str>,
) -> SystemCgroupOptions {
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    SystemCgroupOptions {
        kubelet: given(&config.kubelet_cgroups),
        system: given(&config.system_cgroups),
        runtime: runtime.and_then(given),
        root: config.cgroup_root.clone(),
    }
}

fn amounts(list: &StringMap) -> Amounts {
    list.iter()
        .filter_map(|(name, amount)| Some((name.clone(), quantity::parse(amount).ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn config(json: Value) -> KubeletConfiguration {
        let mut config = serde_json::from_value(json).unwrap();
        super::super::kubelet_defaults::set_defaults(&mut config);
        config
    }

    #[test]
    fn memory_qos_needs_its_gate() {
        let fields = json!({
            "memoryThrottlingFactor": 0.5, "systemReserved": {"memory": "1Gi"},
            "kubeReserved": {"memory": "1Mi"}
        });
        assert_eq!(memory_qos(&config(fields.clone())), None);
        let mut on = fields;
        on["featureGates"] = json!({"MemoryQoS": true});
        assert_eq!(warnings(&config(on.clone()), true), [""; 0]);
        assert_eq!(warnings(&config(on.clone()), false).len(), 1);
        let expected = MemoryQos {
            reservation: MemoryReservationPolicy::None,
            throttling_factor: 0.5,
            reserved: (1 << 30) + (1 << 20),
        };
        assert_eq!(memory_qos(&config(on.clone())), Some(expected));
        on["memoryReservationPolicy"] = json!("TieredReservation");
        let pods = cgroups(&config(on.clone())).unwrap().manager.pods;
        assert_eq!(pods.memory_qos, Some(MemoryReservationPolicy::Tiered));
        let faults = |json: Value| {
            let mut faults = Faults::default();
            validate(&config(json), &mut faults);
            faults.into_list()
        };
        assert_eq!(faults(on.clone()), [""; 0]);
        on["featureGates"] = json!({"MemoryQoS": false});
        assert_eq!(
            faults(on),
            [
                "memoryReservationPolicy: invalid value \"TieredReservation\": requires \
              featureGates.MemoryQoS to be true"
            ]
        );
    }

    #[test]
    fn daemons_have_cgroups_below_the_root() {
        let fields = json!({
            "kubeletCgroups": "/daemons/kubelet", "systemCgroups": "/system", "cgroupRoot": "/"
        });
        let expected = SystemCgroupOptions {
            kubelet: Some("/daemons/kubelet".to_owned()),
            system: Some("/system".to_owned()),
            runtime: Some("/runtime".to_owned()),
            root: "/".to_owned(),
        };
        let mut config = config(fields);
        assert_eq!(system_cgroups(&config, Some("/runtime")), expected);
        let mut faults = Faults::default();
        validate(&config, &mut faults);
        assert_eq!(faults.into_list(), [""; 0]);
        for (kubelet, reserved, count) in [("/a/k", "/a", 0), ("/k", "", 0), ("/k", "/a", 1)] {
            (config.kubelet_cgroups, config.kube_reserved_cgroup) =
                (kubelet.into(), reserved.into());
            assert_eq!(warnings(&config, true).len(), count, "{kubelet} {reserved}");
        }
        (config.kubelet_cgroups, config.system_cgroups) = ("/../a".into(), "/".into());
        let mut faults = Faults::default();
        validate(&config, &mut faults);
        assert_eq!(
            faults.into_list(),
            [
                "kubeletCgroups: invalid value \"/../a\": must be the path of a cgroup below the root",
                "systemCgroups: invalid value \"/\": must be the path of a cgroup below the root",
            ]
        );
        let none = SystemCgroupOptions {
            root: "/".to_owned(),
            ..SystemCgroupOptions::default()
        };
        (config.kubelet_cgroups, config.system_cgroups) = (String::new(), String::new());
        assert_eq!(system_cgroups(&config, None), none);
    }

    #[test]
    fn reserved_memory_of_classes_needs_its_gate() {
        let with = |percentage: &str, gate: bool| {
            config(json!({
                "qosReserved": {"memory": percentage}, "featureGates": {"QOSReserved": gate}
            }))
        };
        let reserved =
            |config: &KubeletConfiguration| cgroups(config).unwrap().manager.qos_reserved_memory;
        assert_eq!(reserved(&with("50%", true)), Some(50));
        assert_eq!(warnings(&with("50%", true), false), [""; 0]);
        assert_eq!(reserved(&with("50%", false)), None);
        assert_eq!(warnings(&with("50%", false), false).len(), 1);
        for (fields, rule) in [
            (
                json!({"memory": "50"}),
                "qosReserved[memory]: invalid value \"50\": must be a percentage",
            ),
            (json!({"memory": "101%"}), "must be a percentage"),
            (json!({"memory": "-1%"}), "must be a percentage"),
            (
                json!({"cpu": "1%"}),
                "qosReserved[cpu]: invalid value \"1%\": must be a reservation of memory",
            ),
        ] {
            let mut faults = Faults::default();
            validate(&config(json!({"qosReserved": fields})), &mut faults);
            let text = faults.into_list().join("\n");
            assert!(text.contains(rule), "{text}");
        }
    }
}
