//! Options of eviction: thresholds, grace periods and minimum reclaims by signal.

use std::{collections::BTreeMap, time::Duration};

use go_duration::GoDuration;
use kubelet_eviction::{EvictionOptions, Signal, Threshold};
use kubelet_pod_spec::amount_or_share::AmountOrShare;

use super::{
    faults::Faults,
    kubelet_configuration::{KubeletConfiguration, StringMap},
    values::{at_least_zero, span},
};

/// The options of a validated configuration.
pub(super) fn eviction(config: &KubeletConfiguration) -> EvictionOptions {
    let mut thresholds = Vec::new();
    for (signal, value) in hard_thresholds(config) {
        thresholds.push(Threshold::hard(signal, value));
    }
    let enforced = config.enforce_node_allocatable.iter().flatten();
    if enforced.into_iter().any(|level| level == "pods") {
        let of_memory = |it: &&Threshold| it.signal == Signal::MemoryAvailable;
        let copies: Vec<Threshold> = thresholds.iter().filter(of_memory).copied().collect();
        thresholds.extend(copies.into_iter().map(|threshold| Threshold {
            signal: Signal::AllocatableMemoryAvailable,
            ..threshold
        }));
    }
    for (signal, value) in parsed(&config.eviction_soft) {
        let grace_period = config.eviction_soft_grace_period.get(signal.as_str());
        thresholds.push(Threshold {
            grace_period: grace_period
                .and_then(|text| text.parse::<GoDuration>().ok())
                .map(span)
                .unwrap_or_default(),
            ..Threshold::hard(signal, value)
        });
    }
    let reclaims: BTreeMap<Signal, AmountOrShare> =
        parsed(&config.eviction_minimum_reclaim).collect();
    for threshold in &mut thresholds {
        // The minimum for the memory of pods is that of the node's.
        let signal = match threshold.signal {
            Signal::AllocatableMemoryAvailable => Signal::MemoryAvailable,
            signal => signal,
        };
        threshold.min_reclaim = reclaims.get(&signal).copied().unwrap_or_default();
    }
    EvictionOptions {
        thresholds,
        max_pod_grace_period: Duration::from_secs(
            at_least_zero(config.eviction_max_pod_grace_period).into(),
        ),
        pressure_transition_period: span(config.eviction_pressure_transition_period),
        local_storage_isolation: config.local_storage_capacity_isolation != Some(false),
        kernel_notification: config.kernel_memcg_notification,
    }
}

/// The hard threshold of a signal; zero without one.
pub(super) fn hard_threshold(config: &KubeletConfiguration, signal: Signal) -> AmountOrShare {
    let thresholds = hard_thresholds(config);
    thresholds.get(&signal).copied().unwrap_or_default()
}

/// The hard thresholds of a configuration with defaults.
fn hard_thresholds(config: &KubeletConfiguration) -> BTreeMap<Signal, AmountOrShare> {
    config.eviction_hard.iter().flat_map(parsed).collect()
}

/// The thresholds of a validated list.
fn parsed(list: &StringMap) -> impl Iterator<Item = (Signal, AmountOrShare)> {
    list.iter().filter_map(|(name, text)| threshold(name, text))
}

/// A threshold; `None` for one that is switched off.
fn threshold(name: &str, text: &str) -> Option<(Signal, AmountOrShare)> {
    if matches!(text, "0%" | "100%") {
        return None;
    }
    Some((Signal::parse(name)?, AmountOrShare::parse(text).ok()?))
}

/// Validates the fields of eviction.
pub(super) fn validate(config: &KubeletConfiguration, faults: &mut Faults) {
    let hard = config.eviction_hard.clone().unwrap_or_default();
    for (field, list) in [
        ("evictionHard", &hard),
        ("evictionSoft", &config.eviction_soft),
        ("evictionMinimumReclaim", &config.eviction_minimum_reclaim),
        (
            "evictionSoftGracePeriod",
            &config.eviction_soft_grace_period,
        ),
    ] {
        for (signal, text) in list {
            let name = format!("{field}[{signal}]");
            let shown = format_args!("{text:?}");
            if Signal::parse(signal).is_none() {
                let names = Signal::ALL.map(Signal::as_str).join(", ");
                let rule = format!("must be a setting for one of: {names}");
                faults.add(&name, shown, rule);
            } else if field == "evictionSoftGracePeriod" {
                match text.parse::<GoDuration>() {
                    Ok(period) if period.is_negative() => {
                        faults.add(&name, shown, "must not be negative");
                    }
                    Ok(_) => {}
                    Err(error) => faults.add(&name, shown, error),
                }
            } else {
                let is_reclaim = field == "evictionMinimumReclaim";
                match AmountOrShare::parse(text) {
                    Ok(AmountOrShare::Amount(0)) if !is_reclaim => {
                        faults.add(&name, shown, "must be positive; 0% switches it off");
                    }
                    Ok(_) => {}
                    Err(rule) => faults.add(&name, shown, rule),
                }
            }
        }
    }
    for signal in config.eviction_soft.keys() {
        if Signal::parse(signal).is_some()
            && !config.eviction_soft_grace_period.contains_key(signal)
        {
            let text = &config.eviction_soft[signal];
            let rule = format!("needs a grace period, evictionSoftGracePeriod[{signal}]");
            let field = format!("evictionSoft[{signal}]");
            faults.add(&field, format_args!("{text:?}"), rule);
        }
    }
    if config.eviction_pressure_transition_period.is_negative() {
        faults.add(
            "evictionPressureTransitionPeriod",
            config.eviction_pressure_transition_period,
            "must not be negative",
        );
    }
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::quantity::NANOS;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::kubelet_defaults::set_defaults;

    fn config(json: Value) -> KubeletConfiguration {
        let mut config = serde_json::from_value(json).unwrap();
        set_defaults(&mut config);
        config
    }

    fn shown(options: &EvictionOptions) -> Vec<String> {
        let thresholds = options.thresholds.iter();
        thresholds
            .map(|it| {
                let show = |value| match value {
                    AmountOrShare::Amount(amount) => (amount / NANOS).to_string(),
                    AmountOrShare::Share(share) => format!("{}%", (share * 100.0).round()),
                };
                let (value, reclaim) = (show(it.value), show(it.min_reclaim));
                let grace = it.grace_period.as_secs();
                format!("{}<{value} {grace} {reclaim}", it.signal.as_str())
            })
            .collect()
    }

    #[test]
    fn the_defaults_are_upstreams() {
        let options = eviction(&config(json!({})));
        assert_eq!(
            shown(&options),
            [
                "memory.available<104857600 0 0",
                "nodefs.available<10% 0 0",
                "nodefs.inodesFree<5% 0 0",
                "imagefs.available<15% 0 0",
                "imagefs.inodesFree<5% 0 0",
                "allocatableMemory.available<104857600 0 0",
            ]
        );
        assert_eq!(options.pressure_transition_period, Duration::from_secs(300));
        assert!(options.local_storage_isolation && !options.kernel_notification);
    }

    #[test]
    fn each_signal_has_its_settings() {
        let options = eviction(&config(json!({
            "evictionHard": {"memory.available": "5", "nodefs.available": "0%"},
            "evictionSoft": {"memory.available": "9", "pid.available": "10%"},
            "evictionSoftGracePeriod": {"memory.available": "1m30s", "pid.available": "5s"},
            "evictionMinimumReclaim": {"memory.available": "2", "pid.available": "1%"},
            "evictionMaxPodGracePeriod": 60,
            "enforceNodeAllocatable": ["none"],
            "localStorageCapacityIsolation": false,
            "kernelMemcgNotification": true,
        })));
        assert_eq!(
            shown(&options),
            [
                "memory.available<5 0 2",
                "memory.available<9 90 2",
                "pid.available<10% 5 1%",
            ]
        );
        assert_eq!(options.max_pod_grace_period, Duration::from_secs(60));
        assert!(!options.local_storage_isolation && options.kernel_notification);
    }

    #[test]
    fn thresholds_that_are_given_replace_all_defaults_unless_merged() {
        let given = json!({"evictionHard": {"nodefs.available": "7"}});
        assert_eq!(
            shown(&eviction(&config(given.clone()))),
            ["nodefs.available<7 0 0"]
        );
        let mut merged = given;
        merged["mergeDefaultEvictionSettings"] = json!(true);
        let found = shown(&eviction(&config(merged)));
        let none = json!({"evictionHard": {}, "mergeDefaultEvictionSettings": false});
        assert_eq!(shown(&eviction(&config(none))), [""; 0]);
        let unset = json!({"evictionHard": null});
        assert_eq!(shown(&eviction(&config(unset))).len(), 6);
        assert_eq!(found.len(), 6);
        assert!(
            found.contains(&"nodefs.available<7 0 0".to_owned()),
            "{found:?}"
        );
    }

    #[test]
    fn faults_name_field_and_rule() {
        let mut faults = Faults::default();
        let bad = json!({
            "evictionHard": {"memory.free": "1Mi", "memory.available": "120%", "pid.available": "0"},
            "evictionSoft": {"nodefs.available": "10%", "imagefs.available": "x"},
            "evictionSoftGracePeriod": {"imagefs.available": "-1s", "pid.available": "soon"},
            "evictionMinimumReclaim": {"memory.available": "-1", "nodefs.available": "0"},
            "evictionPressureTransitionPeriod": "-1s",
        });
        validate(&config(bad), &mut faults);
        let faults = faults.into_list();
        let text = faults.join("\n");
        for part in [
            "evictionHard[memory.free]: invalid value \"1Mi\": must be a setting for one of",
            "evictionHard[memory.available]: invalid value \"120%\": must be between 0% and 100%",
            "evictionHard[pid.available]: invalid value \"0\": must be positive",
            "evictionSoft[imagefs.available]: invalid value \"x\": must be a quantity",
            "evictionSoft[nodefs.available]: invalid value \"10%\": needs a grace period",
            "evictionSoftGracePeriod[imagefs.available]: invalid value \"-1s\": must not be",
            "evictionSoftGracePeriod[pid.available]: invalid value \"soon\"",
            "evictionMinimumReclaim[memory.available]: invalid value \"-1\"",
            "evictionPressureTransitionPeriod: invalid value -1s: must not be negative",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert_eq!(faults.len(), 9, "{text}");
    }
}
