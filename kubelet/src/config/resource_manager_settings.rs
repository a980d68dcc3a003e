//! The options of the managers of CPUs and memory, from the configuration.

use std::collections::BTreeSet;

use kubelet_cpu_manager::{OptionGates, StaticOptions};
use kubelet_host::go_bool;
use kubelet_memory_manager::Reserved;
use kubelet_pod_spec::{
    quantity,
    resources::{is_huge_pages, millis, units},
};
use kubelet_resource_managers::{CpuOptions, ResourceManagerOptions, Scope, TopologyOptions};
use kubelet_topology_manager::PolicyName;

use super::{
    faults::Faults,
    feature_gates::{CPU_ALPHA_OPTIONS, CPU_BETA_OPTIONS, NO_QUOTA, is_on},
    kubelet_configuration::KubeletConfiguration,
    reservation::reservation,
};

const STATIC_CPUS: &str = "static";
const STATIC_MEMORY: &str = "Static";
/// Options of the topology manager.
const CLOSEST: &str = "prefer-closest-numa-nodes";
const MOST_NODES: &str = "max-allowable-numa-nodes";
/// NUMA nodes that are supported by default, and the least that can be configured, as upstream.
const DEFAULT_MOST_NODES: usize = 8;

/// The options of a validated configuration.
pub(super) fn managers(config: &KubeletConfiguration) -> ResourceManagerOptions {
    let cpu = (config.cpu_manager_policy == STATIC_CPUS).then(|| CpuOptions {
        policy: cpu_options(config).unwrap_or_default(),
        reserved: config.reserved_system_cpus.parse().unwrap_or_default(),
        reserved_count: reserved_cpus(config),
        keeps_quota: !is_on(config, NO_QUOTA),
    });
    ResourceManagerOptions {
        cpu,
        memory: (config.memory_manager_policy == STATIC_MEMORY).then(|| reserved_memory(config)),
        topology: topology(config),
    }
}

/// The faults of a configuration whose `reservedSystemCPUs` are counted.
pub(super) fn validate(config: &KubeletConfiguration) -> Vec<String> {
    let mut faults = Faults::default();
    let is_static = config.cpu_manager_policy == STATIC_CPUS;
    if is_static {
        if let Err(rule) = cpu_options(config) {
            let shown = format_args!("{:?}", config.cpu_manager_policy_options);
            faults.add("cpuManagerPolicyOptions", shown, rule);
        }
        if reserved_cpus(config) == 0 {
            faults.add(
                "cpuManagerPolicy",
                format_args!("{STATIC_CPUS:?}"),
                "requires CPUs in systemReserved, kubeReserved or reservedSystemCPUs, on which \
                 pods without CPUs of their own run",
            );
        }
    } else if !config.cpu_manager_policy_options.is_empty() {
        let shown = format_args!("{:?}", config.cpu_manager_policy_options);
        let rule = "must be empty unless cpuManagerPolicy is \"static\"";
        faults.add("cpuManagerPolicyOptions", shown, rule);
    }
    if config.cpu_manager_reconcile_period.is_negative() {
        let period = config.cpu_manager_reconcile_period;
        faults.add("cpuManagerReconcilePeriod", period, "must be positive");
    }
    if config.topology_manager_policy != "none" {
        for (name, value) in &config.topology_manager_policy_options {
            if let Err(rule) = topology_option(name, value, &mut TopologyChoices::default()) {
                let field = format!("topologyManagerPolicyOptions[{name}]");
                faults.add(&field, format_args!("{value:?}"), rule);
            }
        }
    }
    validate_reserved_memory(config, &mut faults);
    faults.into_list()
}

fn cpu_options(config: &KubeletConfiguration) -> Result<StaticOptions, String> {
    let gates = OptionGates {
        alpha: is_on(config, CPU_ALPHA_OPTIONS),
        beta: is_on(config, CPU_BETA_OPTIONS),
    };
    StaticOptions::parse(&config.cpu_manager_policy_options, gates)
}

/// A fraction of a CPU reserves a whole one, as upstream.
fn reserved_cpus(config: &KubeletConfiguration) -> usize {
    let amounts = reservation(config).amounts;
    let cpus = millis(amounts.get("cpu").copied().unwrap_or_default());
    usize::try_from(cpus).unwrap_or_default().div_ceil(1000)
}

/// The options of the topology manager.
struct TopologyChoices {
    prefer_closest: bool,
    most_nodes: usize,
}

impl Default for TopologyChoices {
    fn default() -> Self {
        Self {
            prefer_closest: false,
            most_nodes: DEFAULT_MOST_NODES,
        }
    }
}

fn topology(config: &KubeletConfiguration) -> Option<TopologyOptions> {
    let policy = PolicyName::parse(&config.topology_manager_policy)?;
    let mut choices = TopologyChoices::default();
    for (name, value) in &config.topology_manager_policy_options {
        // Invalid options were refused.
        let _ = topology_option(name, value, &mut choices);
    }
    Some(TopologyOptions {
        policy,
        scope: match config.topology_manager_scope.as_str() {
            "pod" => Scope::Pod,
            _ => Scope::Container,
        },
        prefer_closest: choices.prefer_closest,
        most_nodes: choices.most_nodes,
    })
}

fn topology_option(
    name: &str,
    value: &str,
    choices: &mut TopologyChoices,
) -> Result<(), &'static str> {
    match name {
        CLOSEST => {
            choices.prefer_closest = go_bool::parse(value).ok_or("must be true or false")?;
        }
        MOST_NODES => {
            const RULE: &str = "must be a number of at least 8";
            let most = value.parse().map_err(|_| RULE)?;
            if most < DEFAULT_MOST_NODES {
                return Err(RULE);
            }
            choices.most_nodes = most;
        }
        _ => {
            return Err("must be one of: prefer-closest-numa-nodes, max-allowable-numa-nodes");
        }
    }
    Ok(())
}

fn reserved_memory(config: &KubeletConfiguration) -> Reserved {
    let mut reserved = Reserved::new();
    for of_node in &config.reserved_memory {
        let Ok(node) = u32::try_from(of_node.numa_node) else {
            continue;
        };
        for (name, amount) in &of_node.limits {
            let bytes = units(quantity::parse(&amount.0).unwrap_or_default());
            let bytes = u64::try_from(bytes).unwrap_or_default();
            reserved
                .entry(node)
                .or_default()
                .insert(name.clone(), bytes);
        }
    }
    reserved
}

fn validate_reserved_memory(config: &KubeletConfiguration, faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (index, of_node) in config.reserved_memory.iter().enumerate() {
        let node = of_node.numa_node;
        if node < 0 {
            let field = format!("reservedMemory[{index}].numaNode");
            faults.add(&field, node, "must not be negative");
        }
        for (name, amount) in &of_node.limits {
            let field = format!("reservedMemory[{index}].limits[{name}]");
            let shown = format_args!("{:?}", amount.0);
            if name != "memory" && !is_huge_pages(name) {
                faults.add(&field, shown, "must be memory or hugepages-<size>");
            } else if !quantity::parse(&amount.0).is_ok_and(|amount| amount > 0) {
                faults.add(&field, shown, "must be an amount greater than 0");
            } else if !seen.insert((node, name)) {
                let rule = format_args!("NUMA node {node} has a reservation of {name} already");
                faults.add(&field, shown, rule);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::config::kubelet_defaults::set_defaults;

    fn config(fields: Value) -> KubeletConfiguration {
        let mut config = serde_json::from_value(fields).unwrap();
        set_defaults(&mut config);
        config
    }

    #[test]
    fn nothing_is_managed_by_default() {
        let config = config(json!({}));
        assert_eq!(validate(&config), Vec::<String>::new());
        assert_eq!(managers(&config), ResourceManagerOptions::default());
    }

    #[test]
    fn each_field_has_its_effect() {
        let config = config(json!({
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
            "systemReserved": {"cpu": "500m"}, "kubeReserved": {"cpu": "501m"},
            "featureGates": {"DisableCPUQuotaWithExclusiveCPUs": false},
            "memoryManagerPolicy": "Static",
            "reservedMemory": [
                {"numaNode": 1, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}
            ],
            "topologyManagerPolicy": "restricted", "topologyManagerScope": "pod",
            "topologyManagerPolicyOptions": {
                "prefer-closest-numa-nodes": "true", "max-allowable-numa-nodes": "16"
            }
        }));
        assert_eq!(validate(&config), Vec::<String>::new());
        let of_node = [
            ("memory".to_owned(), 1 << 30),
            ("hugepages-2Mi".to_owned(), 2 << 20),
        ];
        let expected = ResourceManagerOptions {
            cpu: Some(CpuOptions {
                policy: StaticOptions {
                    full_cores: true,
                    ..StaticOptions::default()
                },
                reserved: "".parse().unwrap(),
                reserved_count: 2,
                keeps_quota: true,
            }),
            memory: Some([(1, of_node.into())].into()),
            topology: Some(TopologyOptions {
                policy: PolicyName::Restricted,
                scope: Scope::Pod,
                prefer_closest: true,
                most_nodes: 16,
            }),
        };
        assert_eq!(managers(&config), expected);
    }

    #[test]
    fn faults_name_the_field_and_what_is_allowed() {
        for (fields, says) in [
            (
                json!({"cpuManagerPolicy": "static"}),
                "cpuManagerPolicy: invalid value \"static\": requires CPUs in systemReserved",
            ),
            (
                json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
                "must be empty unless cpuManagerPolicy is \"static\"",
            ),
            (
                json!({
                    "cpuManagerPolicy": "static", "systemReserved": {"cpu": "1"},
                    "cpuManagerPolicyOptions": {"align-by-socket": "true"}
                }),
                "requires the feature gate CPUManagerPolicyAlphaOptions",
            ),
            (
                json!({"cpuManagerReconcilePeriod": "-1s"}),
                "cpuManagerReconcilePeriod: invalid value -1s",
            ),
            (
                json!({
                    "topologyManagerPolicy": "best-effort",
                    "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "7"}
                }),
                "topologyManagerPolicyOptions[max-allowable-numa-nodes]: invalid value \"7\"",
            ),
            (
                json!({
                    "topologyManagerPolicy": "best-effort",
                    "topologyManagerPolicyOptions": {"x": "7"}
                }),
                "must be one of: prefer-closest-numa-nodes",
            ),
            (
                json!({"reservedMemory": [{"numaNode": 0, "limits": {"cpu": "1"}}]}),
                "reservedMemory[0].limits[cpu]: invalid value \"1\": must be memory",
            ),
            (
                json!({"reservedMemory": [{"numaNode": 0, "limits": {"memory": "0"}}]}),
                "must be an amount greater than 0",
            ),
            (
                json!({"reservedMemory": [
                    {"numaNode": 0, "limits": {"memory": "1"}},
                    {"numaNode": 0, "limits": {"memory": "1"}}
                ]}),
                "reservedMemory[1].limits[memory]",
            ),
            (
                json!({"reservedMemory": [{"numaNode": -1, "limits": {}}]}),
                "reservedMemory[0].numaNode: invalid value -1",
            ),
        ] {
            let faults = validate(&config(fields));
            assert!(faults.len() == 1 && faults[0].contains(says), "{faults:?}");
        }
    }
}
