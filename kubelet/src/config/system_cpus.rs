//! `reservedSystemCPUs`: CPUs reserved by number. Their count is what the node reserves.

use std::fs;

use kubelet_host::cpu_set::CpuSet;

use super::{faults::Faults, kubelet_configuration::KubeletConfiguration};

const ONLINE: &str = "/sys/devices/system/cpu/online";

/// Replaces the `cpu` amounts of `systemReserved` and `kubeReserved` with the number of
/// `reservedSystemCPUs`. Reads the host's `/sys`: briefly blocking.
///
/// Faults are returned and change nothing.
pub(super) fn reserve(config: &mut KubeletConfiguration) -> Vec<String> {
    let online = fs::read_to_string(ONLINE).unwrap_or_default();
    reserve_of(online.trim(), config)
}

fn reserve_of(online: &str, config: &mut KubeletConfiguration) -> Vec<String> {
    let list = &config.reserved_system_cpus;
    if list.is_empty() {
        return Vec::new();
    }
    let mut faults = Faults::default();
    let mut refuse = |rule: &str| {
        faults.add("reservedSystemCPUs", format_args!("{list:?}"), rule);
    };
    match (list.parse::<CpuSet>(), online.parse::<CpuSet>()) {
        (Err(_), _) => refuse("must be CPU numbers and ranges, such as 0-1,4"),
        (Ok(cpus), Ok(online_cpus)) if !cpus.is_subset(&online_cpus) => {
            refuse(&format!(
                "must be online CPUs of this machine, which are {online}"
            ));
        }
        (Ok(cpus), _) => {
            let count = cpus.len().to_string();
            config.kube_reserved.remove("cpu");
            config.system_reserved.insert("cpu".to_owned(), count);
        }
    }
    faults.into_list()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reserved_cpus_are_what_the_system_takes() {
        let mut config: KubeletConfiguration = serde_json::from_value(json!({
            "reservedSystemCPUs": "0,2-3",
            "systemReserved": {"cpu": "500m", "memory": "1Gi"},
            "kubeReserved": {"cpu": "1", "memory": "2Gi"},
        }))
        .unwrap();
        assert_eq!(reserve_of("0-7", &mut config), Vec::<String>::new());
        assert_eq!(config.system_reserved["cpu"], "3");
        assert!(!config.kube_reserved.contains_key("cpu"));
        assert_eq!(config.kube_reserved["memory"], "2Gi");
    }

    #[test]
    fn cpus_that_are_none_of_the_machine_are_refused() {
        for (list, rule) in [
            ("0-2", "which are 0-1"),
            ("4294967295", "numbers and ranges"),
            ("0-4000000000", "numbers and ranges"),
            ("1-0", "numbers and ranges"),
            ("0;1", "numbers and ranges"),
        ] {
            let mut config = KubeletConfiguration {
                reserved_system_cpus: list.to_owned(),
                ..KubeletConfiguration::default()
            };
            let text = reserve_of("0-1", &mut config).join("\n");
            assert!(text.contains(rule), "{list}: {text}");
            assert!(config.system_reserved.is_empty());
        }
    }
}
