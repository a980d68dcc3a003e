//! Resources reserved from pods: `systemReserved`, `kubeReserved` and the hard eviction thresholds.

use std::collections::BTreeMap;

use kubelet_eviction::Signal;
use kubelet_node::reservation::Reservation;
use kubelet_pod_spec::quantity;

use super::{
    eviction_settings::hard_threshold, faults::Faults, kubelet_configuration::KubeletConfiguration,
};

/// Resources that can be reserved, as upstream.
const RESOURCES: &[&str] = &["cpu", "memory", "ephemeral-storage", "pid"];
/// The reservation of a validated configuration.
pub fn reservation(config: &KubeletConfiguration) -> Reservation {
    let mut amounts = BTreeMap::new();
    for (name, amount) in config.system_reserved.iter().chain(&config.kube_reserved) {
        let amount = quantity::parse(amount).unwrap_or_default();
        *amounts.entry(name.clone()).or_default() += amount;
    }
    Reservation {
        amounts,
        memory: hard_threshold(config, Signal::MemoryAvailable),
        storage: hard_threshold(config, Signal::NodeFsAvailable),
    }
}

/// Validates the reservations.
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
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::quantity::NANOS;
    use serde_json::json;

    use super::*;
    use crate::config::kubelet_defaults::set_defaults;

    fn config(json: serde_json::Value) -> KubeletConfiguration {
        let mut config = serde_json::from_value(json).unwrap();
        set_defaults(&mut config);
        config
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
        });
        validate(&config(bad), &mut faults);
        let text = faults.into_list().join("\n");
        for part in [
            "systemReserved[pods]",
            "systemReserved[cpu]: invalid value \"-1\": must not be negative",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
