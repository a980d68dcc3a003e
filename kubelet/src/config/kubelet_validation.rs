//! Validation of `KubeletConfiguration` by upstream's rules. All faults are reported at once, each
//! with the field's name and the values that are allowed.

use std::path::Path;

use go_duration::GoDuration;
use kubelet_pod_spec::{names, quantity};

use super::{
    cgroup_settings, eviction_settings,
    faults::Faults,
    feature_gates::{
        self, CRASH_LOOP_MAXIMUM, SERVING_CERTIFICATES, SHUTDOWN, SHUTDOWN_BY_PRIORITY,
        VERIFY_PULLED_IMAGES,
    },
    image_settings::validate_allowlist,
    kubelet_configuration::KubeletConfiguration,
    log_settings, reservation, shutdown_settings, trace_settings,
};

/// The faults of a configuration with defaults; empty when it is valid.
pub fn validate(config: &KubeletConfiguration) -> Vec<String> {
    let mut faults = Faults::default();
    feature_gates::validate(config, &mut faults);
    features(config, &mut faults);
    ports_and_addresses(config, &mut faults);
    ranges(config, &mut faults);
    choices(config, &mut faults);
    node_allocatable(config, &mut faults);
    reservation::validate(config, &mut faults);
    eviction_settings::validate(config, &mut faults);
    cgroup_settings::validate(config, &mut faults);
    shutdown_settings::validate(config, &mut faults);
    logs_and_images(config, &mut faults);
    taints(config, &mut faults);
    faults.into_list()
}

/// Fields that need a feature gate, or another field.
fn features(c: &KubeletConfiguration, faults: &mut Faults) {
    let by_priority = !c.shutdown_grace_period_by_pod_priority.is_empty();
    let restart_period = &c.crash_loop_back_off.max_container_restart_period;
    for (gate, field, is_set) in [
        (
            SHUTDOWN,
            "shutdownGracePeriod",
            !c.shutdown_grace_period.is_zero(),
        ),
        (
            SHUTDOWN,
            "shutdownGracePeriodCriticalPods",
            !c.shutdown_grace_period_critical_pods.is_zero(),
        ),
        (
            SHUTDOWN_BY_PRIORITY,
            "shutdownGracePeriodByPodPriority",
            by_priority,
        ),
        (
            CRASH_LOOP_MAXIMUM,
            "crashLoopBackOff.maxContainerRestartPeriod",
            restart_period.is_some(),
        ),
        (
            VERIFY_PULLED_IMAGES,
            "imagePullCredentialsVerificationPolicy",
            !c.image_pull_credentials_verification_policy.is_empty(),
        ),
        (
            VERIFY_PULLED_IMAGES,
            "preloadedImagesVerificationAllowlist",
            !c.preloaded_images_verification_allowlist.is_empty(),
        ),
        (
            SERVING_CERTIFICATES,
            "serverTLSBootstrap",
            c.server_tls_bootstrap,
        ),
    ] {
        if is_set && !feature_gates::is_on(c, gate) {
            faults.require(field, gate);
        }
    }
    if c.enable_system_log_query == Some(true) && c.enable_system_log_handler == Some(false) {
        faults.add(
            "enableSystemLogQuery",
            true,
            "requires enableSystemLogHandler",
        );
    }
}

fn ports_and_addresses(c: &KubeletConfiguration, faults: &mut Faults) {
    faults.port("port", c.port);
    faults.range("readOnlyPort", Some(c.read_only_port), (0, 65535));
    faults.range("healthzPort", c.healthz_port, (0, 65535));
    faults.address("address", &c.address);
    faults.address("healthzBindAddress", &c.healthz_bind_address);
    for (index, server) in c.cluster_dns.iter().enumerate() {
        faults.address(&format!("clusterDNS[{index}]"), server);
    }
    for (field, endpoint) in [
        ("containerRuntimeEndpoint", &c.container_runtime_endpoint),
        ("imageServiceEndpoint", &c.image_service_endpoint),
    ] {
        if !endpoint.is_empty()
            && let Err(rule) = unix_socket_path(endpoint)
        {
            faults.add(field, format_args!("{endpoint:?}"), rule);
        }
    }
}

/// The path of a runtime endpoint: `unix:///path` or a bare path.
///
/// # Errors
/// The required form.
pub fn unix_socket_path(endpoint: &str) -> Result<&Path, &'static str> {
    const FORM: &str =
        "must be a unix socket: unix:///path/to/runtime.sock or /path/to/runtime.sock";
    let path = match endpoint.split_once("://") {
        Some(("unix", path)) => path,
        Some(_) => return Err(FORM),
        None => endpoint.strip_prefix("unix:").unwrap_or(endpoint),
    };
    if path.starts_with('/') {
        Ok(Path::new(path))
    } else {
        Err(FORM)
    }
}

fn ranges(c: &KubeletConfiguration, faults: &mut Faults) {
    faults.at_least(
        "nodeLeaseDurationSeconds",
        Some(c.node_lease_duration_seconds),
        1,
    );
    for (field, value) in [
        ("eventBurst", Some(c.event_burst)),
        ("eventRecordQPS", c.event_record_qps),
        ("kubeAPIBurst", Some(c.kube_api_burst)),
        ("kubeAPIQPS", c.kube_api_qps),
        ("maxPods", Some(c.max_pods)),
        ("podsPerCore", Some(c.pods_per_core)),
        ("registryBurst", Some(c.registry_burst)),
        ("registryPullQPS", c.registry_pull_qps),
    ] {
        faults.at_least(field, value, 0);
    }
    faults.at_least("maxOpenFiles", Some(c.max_open_files), 0);
    faults.at_least("nodeStatusMaxImages", c.node_status_max_images, -1);
    faults.range("oomScoreAdj", c.oom_score_adj, (-1000, 1000));
    faults.range("iptablesDropBit", c.iptables_drop_bit, (0, 31));
    faults.range("iptablesMasqueradeBit", c.iptables_masquerade_bit, (0, 31));
    faults.range(
        "cpuCFSQuotaPeriod",
        c.cpu_cfs_quota_period,
        (GoDuration::from_millis(1), GoDuration::from_secs(1)),
    );
    faults.range(
        "crashLoopBackOff.maxContainerRestartPeriod",
        c.crash_loop_back_off.max_container_restart_period,
        (GoDuration::from_secs(1), GoDuration::from_secs(300)),
    );
    for (field, value) in [
        ("syncFrequency", c.sync_frequency),
        ("fileCheckFrequency", c.file_check_frequency),
        ("httpCheckFrequency", c.http_check_frequency),
        ("runtimeRequestTimeout", c.runtime_request_timeout),
    ] {
        if value.is_negative() {
            faults.add(field, value, "must be positive");
        }
    }
    if let Some(factor) = c.memory_throttling_factor
        && !(factor > 0.0 && factor <= 1.0)
    {
        faults.add(
            "memoryThrottlingFactor",
            factor,
            "must be greater than 0 and at most 1.0",
        );
    }
}

fn choices(c: &KubeletConfiguration, faults: &mut Faults) {
    faults.choice(
        "authorization.mode",
        &c.authorization.mode,
        &["AlwaysAllow", "Webhook"],
    );
    faults.choice("cgroupDriver", &c.cgroup_driver, &["cgroupfs", "systemd"]);
    faults.choice(
        "cpuManagerPolicy",
        &c.cpu_manager_policy,
        &["none", "static"],
    );
    faults.choice(
        "memoryManagerPolicy",
        &c.memory_manager_policy,
        &["None", "Static"],
    );
    faults.choice(
        "topologyManagerPolicy",
        &c.topology_manager_policy,
        &["none", "best-effort", "restricted", "single-numa-node"],
    );
    faults.choice(
        "topologyManagerScope",
        &c.topology_manager_scope,
        &["container", "pod"],
    );
    faults.choice(
        "hairpinMode",
        &c.hairpin_mode,
        &["promiscuous-bridge", "hairpin-veth", "none"],
    );
    faults.choice(
        "memorySwap.swapBehavior",
        &c.memory_swap.swap_behavior,
        &["", "LimitedSwap", "NoSwap"],
    );
    faults.choice(
        "memoryReservationPolicy",
        &c.memory_reservation_policy,
        &["None", "TieredReservation"],
    );
    faults.choice(
        "configMapAndSecretChangeDetectionStrategy",
        &c.config_map_and_secret_change_detection_strategy,
        &["Get", "Cache", "Watch"],
    );
    if feature_gates::is_on(c, VERIFY_PULLED_IMAGES) {
        faults.choice(
            "imagePullCredentialsVerificationPolicy",
            &c.image_pull_credentials_verification_policy,
            &[
                "NeverVerify",
                "NeverVerifyPreloadedImages",
                "NeverVerifyAllowlistedImages",
                "AlwaysVerify",
            ],
        );
    }
    log_settings::validate(c, faults);
    trace_settings::validate(c, faults);
    // No metric of this version is hidden.
    let previous = ["", "1.35"];
    faults.choice(
        "showHiddenMetricsForVersion",
        &c.show_hidden_metrics_for_version,
        &previous,
    );
}

fn taints(c: &KubeletConfiguration, faults: &mut Faults) {
    for (index, taint) in c.register_with_taints.iter().enumerate() {
        let path = format!("registerWithTaints[{index}]");
        if let Err(rule) = names::qualified_name(&taint.key) {
            faults.add(
                &format!("{path}.key"),
                format_args!("{:?}", taint.key),
                rule,
            );
        }
        let value = taint.value.as_deref().unwrap_or_default();
        if let Err(rule) = names::label_value(value) {
            faults.add(&format!("{path}.value"), format_args!("{value:?}"), rule);
        }
        faults.choice(
            &format!("{path}.effect"),
            &taint.effect,
            &["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
        );
        if taint.time_added.is_some() {
            faults.add(&format!("{path}.timeAdded"), "(set)", "must not be set");
        }
    }
}

fn node_allocatable(c: &KubeletConfiguration, faults: &mut Faults) {
    const FIELD: &str = "enforceNodeAllocatable";
    const ALLOWED: &[&str] = &[
        "none",
        "pods",
        "system-reserved",
        "system-reserved-compressible",
        "kube-reserved",
        "kube-reserved-compressible",
    ];
    if !c.system_cgroups.is_empty() && c.cgroup_root.is_empty() {
        faults.add(
            "systemCgroups",
            format_args!("{:?}", c.system_cgroups),
            "requires cgroupRoot to be set",
        );
    }
    let levels = c.enforce_node_allocatable.as_deref().unwrap_or_default();
    for (index, level) in levels.iter().enumerate() {
        faults.choice(FIELD, level, ALLOWED);
        if levels[..index].contains(level) {
            faults.add(FIELD, format_args!("{level:?}"), "must not be repeated");
        }
        if level == "none" && levels.len() > 1 {
            faults.add(FIELD, "\"none\"", "cannot be combined with other levels");
        }
        if let Some(base) = level.strip_suffix("-compressible")
            && levels.iter().any(|other| other == base)
        {
            faults.add(
                FIELD,
                format_args!("{level:?}"),
                format_args!("cannot be combined with {base:?}"),
            );
        }
        let cgroup = match level.strip_suffix("-compressible").unwrap_or(level) {
            "system-reserved" => Some(("systemReservedCgroup", &c.system_reserved_cgroup)),
            "kube-reserved" => Some(("kubeReservedCgroup", &c.kube_reserved_cgroup)),
            _ => None,
        };
        if let Some((name, value)) = cgroup
            && value.is_empty()
        {
            faults.add(
                FIELD,
                format_args!("{level:?}"),
                format_args!("requires {name} to be set"),
            );
        }
        if level != "none" && c.cgroups_per_qos == Some(false) {
            faults.add(
                FIELD,
                format_args!("{level:?}"),
                "requires cgroupsPerQOS to be true",
            );
        }
    }
    let reserved_cgroups = [&c.system_reserved_cgroup, &c.kube_reserved_cgroup];
    if !c.reserved_system_cpus.is_empty()
        && reserved_cgroups.iter().any(|cgroup| !cgroup.is_empty())
    {
        faults.add(
            "reservedSystemCPUs",
            format_args!("{:?}", c.reserved_system_cpus),
            "cannot be combined with systemReservedCgroup or kubeReservedCgroup",
        );
    }
    for (field, reserved) in [
        ("systemReserved", &c.system_reserved),
        ("kubeReserved", &c.kube_reserved),
    ] {
        for (resource, amount) in reserved {
            if let Err(error) = quantity::parse(amount) {
                faults.add(
                    &format!("{field}.{resource}"),
                    format_args!("{amount:?}"),
                    error,
                );
            }
        }
    }
}

fn logs_and_images(c: &KubeletConfiguration, faults: &mut Faults) {
    faults.at_least("containerLogMaxFiles", c.container_log_max_files, 2);
    faults.at_least("containerLogMaxWorkers", c.container_log_max_workers, 1);
    faults.at_least(
        "containerLogMonitorInterval",
        c.container_log_monitor_interval,
        GoDuration::from_secs(3),
    );
    if let Err(error) = quantity::parse(&c.container_log_max_size) {
        faults.add(
            "containerLogMaxSize",
            format_args!("{:?}", c.container_log_max_size),
            error,
        );
    }
    let logs = Path::new(&c.pod_logs_dir);
    if !logs.is_absolute() || !is_normal(&c.pod_logs_dir) || !c.pod_logs_dir.is_ascii() {
        faults.add(
            "podLogsDir",
            format_args!("{:?}", c.pod_logs_dir),
            "must be an absolute, normalized path of ASCII characters",
        );
    }
    faults.range(
        "imageGCHighThresholdPercent",
        c.image_gc_high_threshold_percent,
        (0, 100),
    );
    faults.range(
        "imageGCLowThresholdPercent",
        c.image_gc_low_threshold_percent,
        (0, 100),
    );
    if let (Some(low), Some(high)) = (
        c.image_gc_low_threshold_percent,
        c.image_gc_high_threshold_percent,
    ) && low >= high
    {
        faults.add(
            "imageGCLowThresholdPercent",
            low,
            format_args!("must be less than imageGCHighThresholdPercent, {high}"),
        );
    }
    for (field, age) in [
        ("imageMinimumGCAge", c.image_minimum_gc_age),
        ("imageMaximumGCAge", c.image_maximum_gc_age),
    ] {
        if age.is_negative() {
            faults.add(field, age, "must not be negative");
        }
    }
    if !c.image_maximum_gc_age.is_zero() && c.image_maximum_gc_age <= c.image_minimum_gc_age {
        faults.add(
            "imageMaximumGCAge",
            c.image_maximum_gc_age,
            format_args!(
                "must be greater than imageMinimumGCAge, {}",
                c.image_minimum_gc_age
            ),
        );
    }
    validate_allowlist(c, faults);
    faults.at_least("maxParallelImagePulls", c.max_parallel_image_pulls, 1);
    if c.serialize_image_pulls == Some(true)
        && let Some(pulls) = c.max_parallel_image_pulls
        && pulls > 1
    {
        faults.add(
            "maxParallelImagePulls",
            pulls,
            "must be 1 unless serializeImagePulls is false",
        );
    }
}

/// Whether a path is normalised: no `.`, `..`, empty or trailing parts.
fn is_normal(path: &str) -> bool {
    path == "/"
        || path
            .split('/')
            .skip(1)
            .all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests;
