//! The configuration of graceful node shutdown.

use std::time::Duration;

use go_duration::GoDuration;
use kubelet_node::shutdown::order::ShutdownGracePeriod;
use kubelet_pod_spec::priority::SYSTEM_CRITICAL;

use super::{faults::Faults, kubelet_configuration::KubeletConfiguration, values::span};

/// Priority of pods without one.
const DEFAULT_PRIORITY: i32 = 0;

/// The shutdown grace periods, sorted by priority; empty when graceful shutdown is disabled. Whole
/// seconds, as upstream.
pub(super) fn shutdown_grace_periods(config: &KubeletConfiguration) -> Vec<ShutdownGracePeriod> {
    let of = |priority, seconds| ShutdownGracePeriod {
        priority,
        period: Duration::from_secs(seconds),
    };
    let by_priority = config.shutdown_grace_period_by_pod_priority.iter();
    let mut periods: Vec<_> = by_priority
        .map(|grace| {
            let seconds = u64::try_from(grace.shutdown_grace_period_seconds);
            of(grace.priority, seconds.unwrap_or_default())
        })
        .collect();
    periods.sort_by_key(|grace| grace.priority);
    if periods.is_empty() && !config.shutdown_grace_period.is_zero() {
        let all = span(config.shutdown_grace_period);
        let critical = span(config.shutdown_grace_period_critical_pods).min(all);
        periods.push(of(DEFAULT_PRIORITY, (all - critical).as_secs()));
        periods.push(of(SYSTEM_CRITICAL, critical.as_secs()));
    }
    periods
}

/// Validates the shutdown fields.
pub(super) fn validate(c: &KubeletConfiguration, faults: &mut Faults) {
    let second = GoDuration::from_secs(1);
    for (field, period) in [
        ("shutdownGracePeriod", c.shutdown_grace_period),
        (
            "shutdownGracePeriodCriticalPods",
            c.shutdown_grace_period_critical_pods,
        ),
    ] {
        if !period.is_zero() && period < second {
            faults.add(field, period, "must be zero, or 1s or longer");
        }
    }
    if c.shutdown_grace_period_critical_pods > c.shutdown_grace_period {
        faults.add(
            "shutdownGracePeriodCriticalPods",
            c.shutdown_grace_period_critical_pods,
            format_args!(
                "must not exceed shutdownGracePeriod, {}",
                c.shutdown_grace_period
            ),
        );
    }
    if !c.shutdown_grace_period_by_pod_priority.is_empty() && !c.shutdown_grace_period.is_zero() {
        faults.add(
            "shutdownGracePeriodByPodPriority",
            "(set)",
            "cannot be combined with shutdownGracePeriod",
        );
    }
    let by_priority = c.shutdown_grace_period_by_pod_priority.iter().enumerate();
    for (index, grace) in by_priority {
        faults.at_least(
            &format!("shutdownGracePeriodByPodPriority[{index}].shutdownGracePeriodSeconds"),
            Some(grace.shutdown_grace_period_seconds),
            0,
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn periods(json: Value) -> Vec<(i32, u64)> {
        let config = serde_json::from_value(json).unwrap();
        let periods = shutdown_grace_periods(&config).into_iter();
        periods
            .map(|grace| (grace.priority, grace.period.as_secs()))
            .collect()
    }

    #[test]
    fn both_ways_to_say_it_come_to_periods_by_priority() {
        assert_eq!(periods(json!({})), []);
        let json =
            json!({"shutdownGracePeriod": "30.5s", "shutdownGracePeriodCriticalPods": "10s"});
        assert_eq!(periods(json), [(0, 20), (2_000_000_000, 10)]);
        let json = json!({"shutdownGracePeriod": "30s"});
        assert_eq!(periods(json), [(0, 30), (2_000_000_000, 0)]);
        let json = json!({"shutdownGracePeriodByPodPriority": [
            {"priority": 1000, "shutdownGracePeriodSeconds": 5},
            {"priority": -1, "shutdownGracePeriodSeconds": 7},
        ]});
        assert_eq!(periods(json), [(-1, 7), (1000, 5)]);
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (json, expected) in [
            (
                json!({"shutdownGracePeriod": "1s", "shutdownGracePeriodCriticalPods": "2s"}),
                "shutdownGracePeriodCriticalPods: invalid value 2s: must not exceed \
                 shutdownGracePeriod, 1s",
            ),
            (
                json!({"shutdownGracePeriod": "1ms"}),
                "shutdownGracePeriod: invalid value 1ms: must be zero, or 1s or longer",
            ),
            (
                json!({"shutdownGracePeriod": "1s", "shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": 0}
                ]}),
                "shutdownGracePeriodByPodPriority: invalid value (set): cannot be \
                 combined with shutdownGracePeriod",
            ),
            (
                json!({"shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": -1}
                ]}),
                "shutdownGracePeriodByPodPriority[0].shutdownGracePeriodSeconds: invalid value \
                 -1: must be 0 or greater",
            ),
        ] {
            let mut faults = Faults::default();
            validate(&serde_json::from_value(json).unwrap(), &mut faults);
            assert_eq!(faults.into_list(), [expected]);
        }
    }
}
