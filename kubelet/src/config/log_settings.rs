//! The configuration of container logs.

use kubelet_logs::RotationPolicy;
use kubelet_pod_spec::quantity::{self, NANOS};

use super::kubelet_configuration::KubeletConfiguration;

/// The rotation policy; `None` (no rotation) if `containerLogMaxSize` is negative.
pub(super) fn log_rotation(config: &KubeletConfiguration) -> Option<RotationPolicy> {
    let default = RotationPolicy::default();
    let max_size = quantity::parse(&config.container_log_max_size).ok()?;
    let count = |value: Option<i32>, default| {
        value.map_or(default, |value| usize::try_from(value).unwrap_or(default))
    };
    let interval = config.container_log_monitor_interval;
    Some(RotationPolicy {
        max_size: u64::try_from(max_size / NANOS).ok()?,
        max_files: count(config.container_log_max_files, default.max_files),
        max_workers: count(config.container_log_max_workers, default.max_workers),
        monitor_interval: interval
            .and_then(|interval| interval.to_std())
            .unwrap_or(default.monitor_interval),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::kubelet_defaults::set_defaults;

    #[test]
    fn sizes_are_quantities_and_a_negative_one_is_never() {
        let mut config = KubeletConfiguration::default();
        set_defaults(&mut config);
        let policy = log_rotation(&config).unwrap();
        assert_eq!((policy.max_size, policy.max_files), (10 << 20, 5));
        config.container_log_max_size = "1500m".to_owned();
        assert_eq!(log_rotation(&config).unwrap().max_size, 1);
        config.container_log_max_size = "-1".to_owned();
        assert_eq!(log_rotation(&config), None);
    }
}
