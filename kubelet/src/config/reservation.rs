//! Resources reserved from pods: `systemReserved`, `kubeReserved` and the hard eviction thresholds.

use std::collections::BTreeMap;

use kubelet_node::reservation::{Reservation, Threshold};
use kubelet_pod_spec::quantity;

use super::{faults::Faults, kubelet_configuration::KubeletConfiguration};

/// Resources that can be reserved, as upstream.
const RESOURCES: &[&str] = &["cpu", "memory", "ephemeral-storage", "pid"];
/// Eviction signals and their default hard thresholds.
const SIGNALS: &[(&str, &str)] = &[
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
    ("containerfs.available", ""),
    ("containerfs.inodesFree", ""),
    ("pid.available", ""),
    ("allocatableMemory.available", ""),
];

/// The reservation of a validated configuration.
pub fn reservation(config: &KubeletConfiguration) -> Reservation {
    let mut amounts = BTreeMap::new();
    for (name, amount) in config.system_reserved.iter().chain(&config.kube_reserved) {
        let amount = quantity::parse(amount).unwrap_or_default();
        *amounts.entry(name.clone()).or_default() += amount;
    }
    Reservation {
        amounts,
        memory: threshold(config, "memory.available"),
        storage: threshold(config, "nodefs.available"),
    }
}

fn threshold(config: &KubeletConfiguration, signal: &str) -> Threshold {
    let default = SIGNALS.iter().find(|(name, _)| *name == signal);
    let default = default.map_or("", |(_, default)| default);
    let has_defaults =
        config.eviction_hard.is_empty() || config.merge_default_eviction_settings == Some(true);
    let text = match config.eviction_hard.get(signal) {
        Some(text) => text,
        None if has_defaults => default,
        None => "",
    };
    Threshold::parse(text).unwrap_or_default()
}

/// Validates the reservations and hard eviction thresholds.
pub(super) fn validate(config: &KubeletConfiguration, faults: &mut Faults) {
    for (field, list) in [
        ("systemReserved", &config.system_reserved),
        ("kubeReserved", &config.kube_reserved),
    ] {
        for (name, amount) in list {
            let field = format!("{field}[{name}]");
            if !RESOURCES.contains(&name.as_str()) {
                let rule = format!("must be a reservation of one of: {}", RESOURCES.join(", "));
                faults.add(&field, format_args!("{amount:?}"), rule);
                continue;
            }
            match quantity::parse(amount) {
                Ok(amount) if amount >= 0 => {}
                Ok(_) => faults.add(&field, format_args!("{amount:?}"), "must not be negative"),
                Err(error) => faults.add(&field, format_args!("{amount:?}"), error),
            }
        }
    }
    for (signal, text) in &config.eviction_hard {
        let field = format!("evictionHard[{signal}]");
        if !SIGNALS.iter().any(|(name, _)| name == signal) {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            let rule = format!("must be a threshold for one of: {}", names.join(", "));
            faults.add(&field, format_args!("{text:?}"), rule);
        } else if let Err(rule) = Threshold::parse(text) {
            faults.add(&field, format_args!("{text:?}"), rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::quantity::NANOS;
    use serde_json::json;

    use super::*;

    fn config(json: serde_json::Value) -> KubeletConfiguration {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn reservations_and_thresholds_add_up() {
        let reserved = reservation(&config(json!({
            "systemReserved": {"cpu": "100m", "memory": "1Gi"},
            "kubeReserved": {"cpu": "200m"},
        })));
        let gib = |count: i128| count * (1 << 30) * NANOS;
        assert_eq!(reserved.amount("cpu", 2 * NANOS), 300_000_000);
        assert_eq!(
            reserved.amount("memory", gib(8)),
            gib(1) + 100 * (1 << 20) * NANOS
        );
        // 10 % in single precision.
        assert_eq!(
            reserved.amount("ephemeral-storage", 1_000_000_000 * NANOS),
            100_000_001 * NANOS
        );
        assert_eq!(reserved.amount("pods", NANOS), 0);
    }

    #[test]
    fn thresholds_that_are_given_replace_all_defaults_unless_merged() {
        let given = json!({"evictionHard": {"nodefs.available": "0%"}});
        let reserved = reservation(&config(given.clone()));
        assert_eq!(reserved.amount("memory", NANOS), 0);
        let mut merged = given;
        merged["mergeDefaultEvictionSettings"] = json!(true);
        let reserved = reservation(&config(merged));
        assert_eq!(reserved.amount("memory", NANOS), 100 * (1 << 20) * NANOS);
        assert_eq!(reserved.amount("ephemeral-storage", NANOS), 0);
    }

    #[test]
    fn faults_name_field_and_rule() {
        let mut faults = Faults::default();
        let bad = json!({
            "systemReserved": {"pods": "1", "cpu": "-1"},
            "evictionHard": {"memory.free": "1Mi", "memory.available": "120%"},
        });
        validate(&config(bad), &mut faults);
        let text = faults.into_list().join("\n");
        for part in [
            "systemReserved[pods]",
            "systemReserved[cpu]: invalid value \"-1\": must not be negative",
            "evictionHard[memory.free]",
            "evictionHard[memory.available]: invalid value \"120%\": must be between 0% and 100%",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
