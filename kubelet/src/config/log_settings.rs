//! The configuration of logs: the kubelet's own, and those of containers.

use kubelet_logs::RotationPolicy;
use kubelet_pod_spec::quantity::{self, NANOS};

use super::{faults::Faults, kubelet_configuration::KubeletConfiguration};
use crate::logging::ModuleVerbosity;

/// The verbosity of modules.
pub(super) fn module_verbosity(config: &KubeletConfiguration) -> Vec<ModuleVerbosity> {
    let modules = config.logging.vmodule.iter();
    modules
        .map(|module| ModuleVerbosity {
            pattern: module.file_pattern.clone(),
            verbosity: module.verbosity,
        })
        .collect()
}

/// Checks the kubelet's own log.
pub(super) fn validate(config: &KubeletConfiguration, faults: &mut Faults) {
    let logging = &config.logging;
    faults.choice("logging.format", &logging.format, &["text", "json"]);
    if !logging.vmodule.is_empty() && logging.format != "text" {
        let rule = "only supported for the text log format";
        faults.add("logging.vmodule", "with logging.format json", rule);
    }
    for (index, module) in logging.vmodule.iter().enumerate() {
        let pattern = &module.file_pattern;
        let field = format!("logging.vmodule[{index}].filePattern");
        if pattern.is_empty() {
            faults.add(&field, "\"\"", "must not be empty");
        } else if pattern.contains(['=', ',', '[', '\\']) {
            let rule = "may contain the wildcards * and ?, and no equal sign, comma, bracket or \
                        backslash";
            faults.add(&field, format_args!("{pattern:?}"), rule);
        }
        let most = u32::try_from(i32::MAX).unwrap_or_default();
        let field = format!("logging.vmodule[{index}].verbosity");
        faults.range(&field, Some(module.verbosity), (0, most));
    }
}

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
    use crate::config::{kubelet_configuration::VModuleItem, kubelet_defaults::set_defaults};

    #[test]
    fn modules_have_a_verbosity_of_their_own_in_text() {
        let check = |format: &str, pattern: &str, verbosity| {
            let mut config = KubeletConfiguration::default();
            config.logging.format = format.to_owned();
            config.logging.vmodule = vec![VModuleItem {
                file_pattern: pattern.to_owned(),
                verbosity,
            }];
            let mut faults = Faults::default();
            validate(&config, &mut faults);
            faults.into_list()
        };
        assert_eq!(check("text", "csi_*", 6), [""; 0]);
        for (format, pattern, verbosity, start) in [
            ("json", "csi", 6, "logging.vmodule: "),
            ("text", "", 6, "logging.vmodule[0].filePattern: "),
            ("text", "a=b", 6, "logging.vmodule[0].filePattern: "),
            ("text", "[ab]", 6, "logging.vmodule[0].filePattern: "),
            ("text", "csi", 1 << 31, "logging.vmodule[0].verbosity: "),
        ] {
            let faults = check(format, pattern, verbosity);
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].starts_with(start), "{faults:?}");
        }
    }

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
