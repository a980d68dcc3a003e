//! Defaults of `KubeletConfiguration` fields, as upstream.
//!
//! One differs on purpose: `failCgroupV1` is off, because this kubelet also supports cgroup v1
//! hosts.

use go_duration::GoDuration;

use super::{
    feature_gates::{CRASH_LOOP_MAXIMUM, VERIFY_PULLED_IMAGES, is_on},
    kubelet_configuration::{API_VERSION, KIND, KubeletConfiguration},
};

const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Sets the default of every field that is not set.
pub fn set_defaults(config: &mut KubeletConfiguration) {
    let seconds = GoDuration::from_secs;
    let c = config;

    zero(&mut c.api_version, API_VERSION.to_owned());
    zero(&mut c.kind, KIND.to_owned());
    unset(&mut c.enable_server, true);
    zero(&mut c.sync_frequency, seconds(60));
    zero(&mut c.file_check_frequency, seconds(20));
    zero(&mut c.http_check_frequency, seconds(20));
    zero(&mut c.address, "0.0.0.0".to_owned());
    zero(&mut c.port, 10250);
    unset(&mut c.authentication.anonymous.enabled, false);
    unset(&mut c.authentication.webhook.enabled, true);
    zero(&mut c.authentication.webhook.cache_ttl, seconds(120));
    zero(&mut c.authorization.mode, "Webhook".to_owned());
    zero(
        &mut c.authorization.webhook.cache_authorized_ttl,
        seconds(300),
    );
    zero(
        &mut c.authorization.webhook.cache_unauthorized_ttl,
        seconds(30),
    );
    unset(&mut c.registry_pull_qps, 5);
    zero(&mut c.registry_burst, 10);
    if is_on(c, VERIFY_PULLED_IMAGES) {
        zero(
            &mut c.image_pull_credentials_verification_policy,
            "NeverVerifyPreloadedImages".to_owned(),
        );
    }
    unset(&mut c.event_record_qps, 50);
    zero(&mut c.event_burst, 100);
    unset(&mut c.enable_debugging_handlers, true);
    unset(&mut c.healthz_port, 10248);
    zero(&mut c.healthz_bind_address, "127.0.0.1".to_owned());
    unset(&mut c.oom_score_adj, -999);
    zero(&mut c.streaming_connection_idle_timeout, seconds(4 * 3600));
    // A longer update interval also lengthens the report interval.
    let report = if c.node_status_update_frequency.is_zero() {
        seconds(300)
    } else {
        c.node_status_update_frequency
    };
    zero(&mut c.node_status_report_frequency, report);
    zero(&mut c.node_status_update_frequency, seconds(10));
    zero(&mut c.node_lease_duration_seconds, 40);
    zero(&mut c.image_minimum_gc_age, seconds(120));
    unset(&mut c.image_gc_high_threshold_percent, 85);
    unset(&mut c.image_gc_low_threshold_percent, 80);
    zero(&mut c.volume_stats_agg_period, seconds(60));
    unset(&mut c.cgroups_per_qos, true);
    zero(&mut c.cgroup_driver, "cgroupfs".to_owned());
    zero(&mut c.cpu_manager_policy, "none".to_owned());
    zero(&mut c.cpu_manager_reconcile_period, seconds(10));
    zero(&mut c.memory_manager_policy, "None".to_owned());
    zero(&mut c.topology_manager_policy, "none".to_owned());
    zero(&mut c.topology_manager_scope, "container".to_owned());
    zero(&mut c.runtime_request_timeout, seconds(120));
    zero(&mut c.hairpin_mode, "promiscuous-bridge".to_owned());
    zero(&mut c.max_pods, 110);
    if c.pod_pids_limit.is_none_or(|limit| limit < 0) {
        c.pod_pids_limit = Some(-1);
    }
    unset(&mut c.resolver_config, "/etc/resolv.conf".to_owned());
    unset(&mut c.cpu_cfs_quota, true);
    unset(&mut c.cpu_cfs_quota_period, GoDuration::from_millis(100));
    unset(&mut c.node_status_max_images, 50);
    zero(&mut c.max_open_files, 1_000_000);
    zero(
        &mut c.content_type,
        "application/vnd.kubernetes.protobuf".to_owned(),
    );
    unset(&mut c.kube_api_qps, 50);
    zero(&mut c.kube_api_burst, 100);
    // Setting `maxParallelImagePulls` above 1 enables parallel pulls by itself.
    let serialize = c.max_parallel_image_pulls.is_none_or(|pulls| pulls < 2);
    unset(&mut c.serialize_image_pulls, serialize);
    zero(&mut c.eviction_pressure_transition_period, seconds(300));
    unset(&mut c.merge_default_eviction_settings, false);
    // An empty map switches all of them off.
    let merge = c.merge_default_eviction_settings == Some(true);
    if c.eviction_hard.is_none() || merge {
        let all = c.eviction_hard.get_or_insert_default();
        for (signal, threshold) in EVICTION_HARD {
            let missing = all.entry(signal.to_owned());
            missing.or_insert_with(|| threshold.to_owned());
        }
    }
    unset(&mut c.enable_controller_attach_detach, true);
    unset(&mut c.make_iptables_util_chains, true);
    unset(&mut c.iptables_masquerade_bit, 14);
    unset(&mut c.iptables_drop_bit, 15);
    unset(&mut c.fail_swap_on, true);
    zero(&mut c.container_log_max_size, "10Mi".to_owned());
    unset(&mut c.container_log_max_files, 5);
    unset(&mut c.container_log_max_workers, 1);
    unset(&mut c.container_log_monitor_interval, seconds(10));
    zero(
        &mut c.config_map_and_secret_change_detection_strategy,
        "Watch".to_owned(),
    );
    unset(&mut c.enforce_node_allocatable, vec!["pods".to_owned()]);
    zero(
        &mut c.volume_plugin_dir,
        "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".to_owned(),
    );
    zero(&mut c.logging.format, "text".to_owned());
    unset(&mut c.enable_system_log_handler, true);
    unset(&mut c.enable_profiling_handler, true);
    unset(&mut c.enable_debug_flags_handler, true);
    unset(&mut c.seccomp_default, false);
    unset(&mut c.fail_cgroup_v1, false);
    unset(&mut c.memory_throttling_factor, 0.9);
    zero(&mut c.memory_reservation_policy, "None".to_owned());
    unset(&mut c.register_node, true);
    unset(&mut c.local_storage_capacity_isolation, true);
    zero(
        &mut c.container_runtime_endpoint,
        "unix:///run/containerd/containerd.sock".to_owned(),
    );
    zero(&mut c.pod_logs_dir, "/var/log/pods".to_owned());
    if is_on(c, CRASH_LOOP_MAXIMUM) {
        unset(
            &mut c.crash_loop_back_off.max_container_restart_period,
            seconds(300),
        );
    }
}

/// Sets a field whose zero value means "not set".
fn zero<T: Default + PartialEq>(field: &mut T, value: T) {
    if *field == T::default() {
        *field = value;
    }
}

/// Sets a field that can be zero on purpose.
fn unset<T>(field: &mut Option<T>, value: T) {
    field.get_or_insert(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(json: serde_json::Value) -> KubeletConfiguration {
        let mut config = serde_json::from_value(json).unwrap();
        set_defaults(&mut config);
        config
    }

    #[test]
    fn zero_durations_as_kubeadm_writes_them_mean_the_default() {
        let config = defaulted(serde_json::json!({"syncFrequency": "0s", "healthzPort": 0}));
        assert_eq!(config.sync_frequency, GoDuration::from_secs(60));
        assert_eq!(config.healthz_port, Some(0), "zero switches healthz off");
    }

    #[test]
    fn parallel_pulls_switch_serial_ones_off() {
        let parallel = defaulted(serde_json::json!({"maxParallelImagePulls": 4}));
        assert_eq!(parallel.serialize_image_pulls, Some(false));
        let plain = defaulted(serde_json::json!({}));
        assert_eq!(plain.serialize_image_pulls, Some(true));
    }
}
