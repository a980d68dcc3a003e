//! Combines flags, configuration file, drop-ins and defaults into the settings of a run.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use kubelet_cri_client::CriOptions;
use kubelet_host::{kernel_tunables::TunableBehavior, local_node::LocalNode, selinux::SeLinux};
use kubelet_pod_spec::{json, names};
use kubelet_runtime::{
    RuntimeOptions,
    dns::DnsOptions,
    pod_state::RestartDelays,
    resources::{ResourceOptions, SwapBehavior},
    user_namespace::UserNamespaceOptions,
};
use kubelet_server::options::ServerOptions;
use kubelet_traces::ExportOptions;
use serde_json::{Map, Value};

use super::{
    capacity_settings::capacity,
    cgroup_settings::{self, cgroups, memory_qos, system_cgroups},
    cluster,
    configuration_file::{drop_in, drop_ins, main_file, merge},
    eviction_settings::eviction,
    feature_gates::{
        LIST_ACTIVE_PODS, LIST_STREAMING, POD_RESIZE, POD_RESOURCES, QUICK_RESTARTS, is_on,
    },
    flags::Flags,
    image_settings::{image_gc_options, image_options},
    isolation_validation,
    kubelet_configuration::KubeletConfiguration,
    kubelet_defaults::set_defaults,
    kubelet_validation::{unix_socket_path, validate},
    log_settings::{self, log_rotation},
    resource_manager_settings,
    server_settings::{self, GivenConfig},
    settings_error::SettingsError,
    shutdown_settings::shutdown_grace_periods,
    support, system_cpus, trace_settings,
    values::{absolute, at_least_zero, positive_span, span},
};
use crate::{
    cluster::ClusterOptions,
    host,
    kubelet::options::KubeletOptions,
    lock_file::LockFileOptions,
    logging::{LogFormat, ModuleVerbosity},
    pod::features::PodFeatures,
};

/// The device that the kernel's log is read from.
const KERNEL_LOG: &str = "/dev/kmsg";

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Options of the kubelet's core.
    pub options: KubeletOptions,
    /// The file source of static pods, if configured.
    pub manifests: Option<ManifestOptions>,
    /// The URL source of static pods, if configured.
    pub url: Option<UrlOptions>,
    /// The cluster to join; the kubelet is standalone without one.
    pub cluster: Option<ClusterOptions>,
    /// The lock file, if one was asked for.
    pub lock_file: Option<LockFileOptions>,
    /// Options of the servers.
    pub server: ServerOptions,
    /// Start the pods, report, and exit (`runOnce`).
    pub run_once: bool,
    /// Limit of open files (`maxOpenFiles`).
    pub max_open_files: u64,
    /// Log verbosity, as set by `-v`.
    pub verbosity: u32,
    /// Log verbosity of modules (`logging.vmodule`).
    pub module_verbosity: Vec<ModuleVerbosity>,
    /// Log format (`logging.format`).
    pub log_format: LogFormat,
    /// The export of traces, if one was asked for.
    pub tracing: Option<ExportOptions>,
    /// OOM score adjustment of this process (`oomScoreAdj`).
    pub oom_score_adj: i32,
    /// Refuse to start while swap is on (`failSwapOn`).
    pub fail_swap_on: bool,
    /// What is done about kernel tunables that differ from the required ones
    /// (`protectKernelDefaults`).
    pub tunables: TunableBehavior,
    /// Keep iptables chains for other programs on the node (`makeIPTablesUtilChains`).
    pub utility_chains: bool,
    /// Pod CIDRs of a standalone node (`podCIDR`); none when empty.
    pub pod_cidr: String,
    /// Warnings to log, such as settings without effect.
    pub warnings: Vec<String>,
}

/// The file source of static pods.
#[derive(Clone, Debug)]
pub struct ManifestOptions {
    /// A manifest, or a directory of manifests (`staticPodPath`).
    pub path: PathBuf,
    /// Interval of full reads (`fileCheckFrequency`).
    pub check_frequency: Duration,
}

/// The URL source of static pods.
#[derive(Clone, Debug)]
pub struct UrlOptions {
    /// The URL (`staticPodURL`).
    pub url: String,
    /// Headers of the requests (`staticPodURLHeader`).
    pub headers: BTreeMap<String, Vec<String>>,
    /// Interval of requests (`httpCheckFrequency`).
    pub check_frequency: Duration,
}

impl Settings {
    /// Reads the files that `flags` name and combines the settings: flags override drop-ins, which
    /// override the file, which overrides the defaults.
    ///
    /// # Errors
    /// The error, with file, line and field where known, and what is allowed.
    pub fn load(flags: &Flags) -> Result<Self, SettingsError> {
        let mut warnings = Vec::new();
        let mut merged = read_files(flags, &mut warnings)?;
        let in_vain = support::without_effect(&merged);
        merge(&mut merged, Value::Object(flags.configuration.clone()));
        let config = validated(&merged)?;
        // The servers are on by default; asking for them is what a single run cannot do.
        if config.run_once && merged["enableServer"] == true {
            let fault = "runOnce: invalid value true: cannot be combined with enableServer";
            let faults = vec![fault.to_owned()];
            return Err(SettingsError::Invalid { faults });
        }
        if config.fail_cgroup_v1 == Some(true) && !host::is_cgroup_v2() {
            return Err(SettingsError::CgroupV1);
        }

        if !in_vain.is_empty() {
            warnings.push(format!(
                "configuration file fields without effect yet: {}",
                in_vain.join(", ")
            ));
        }
        warnings.extend(cgroup_settings::warnings(&config, host::is_cgroup_v2()));
        if !flags.without_effect.is_empty() {
            warnings.push(format!(
                "flags without effect: {}",
                flags.without_effect.join(", ")
            ));
        }
        let options = options(&config, flags)?;
        let cert_dir = match &flags.cert_dir {
            Some(dir) => absolute(dir),
            None => options.node.root_dir.join("pki"),
        };
        let cluster = cluster::cluster(&config, flags, &cert_dir);
        if cluster.is_some() && config.enable_controller_attach_detach == Some(false) {
            let fault = "enableControllerAttachDetach: invalid value false: must be true on a node \
                         with an API server, because this kubelet does not attach volumes itself";
            let faults = vec![fault.to_owned()];
            return Err(SettingsError::Invalid { faults });
        }
        let given = GivenConfig {
            config: &merged,
            flags,
            has_api_server: cluster.is_some(),
        };
        let dirs = [options.node.root_dir.as_path(), &cert_dir];
        let server = server_settings::server_options(&config, given, &options.node.name, dirs);
        warnings.extend(server_settings::warning(&server, given));
        Ok(Self {
            options,
            manifests: (!config.static_pod_path.is_empty()).then(|| ManifestOptions {
                path: absolute(Path::new(&config.static_pod_path)),
                check_frequency: span(config.file_check_frequency),
            }),
            url: (!config.static_pod_url.is_empty()).then(|| UrlOptions {
                url: config.static_pod_url.clone(),
                headers: config.static_pod_url_header.clone(),
                check_frequency: span(config.http_check_frequency),
            }),
            cluster,
            lock_file: flags.lock_file.clone(),
            server,
            run_once: config.run_once,
            max_open_files: u64::try_from(config.max_open_files).unwrap_or_default(),
            verbosity: config.logging.verbosity,
            module_verbosity: log_settings::module_verbosity(&config),
            log_format: match config.logging.format.as_str() {
                "json" => LogFormat::Json,
                _ => LogFormat::Text,
            },
            tracing: trace_settings::export(&config),
            oom_score_adj: config.oom_score_adj.unwrap_or_default(),
            fail_swap_on: config.fail_swap_on != Some(false),
            tunables: if config.protect_kernel_defaults {
                TunableBehavior::Refuse
            } else if flags.set_kernel_tunables {
                TunableBehavior::Set
            } else {
                TunableBehavior::Keep
            },
            utility_chains: config.make_iptables_util_chains != Some(false),
            pod_cidr: config.pod_cidr.clone(),
            warnings,
        })
    }
}

/// The configuration file with the drop-ins merged into it; empty without either.
fn read_files(flags: &Flags, warnings: &mut Vec<String>) -> Result<Value, SettingsError> {
    let mut merged = match &flags.config {
        Some(path) => {
            let (file, warning) = main_file(path)?;
            warnings.extend(warning);
            file
        }
        None => Value::Object(Map::new()),
    };
    if let Some(dir) = &flags.config_dir {
        for path in drop_ins(dir)? {
            merge(&mut merged, drop_in(&path)?);
        }
    }
    Ok(merged)
}

/// The configuration in `merged`, with defaults. All faults are reported at once.
fn validated(merged: &Value) -> Result<KubeletConfiguration, SettingsError> {
    let mut config: KubeletConfiguration =
        json::from_value(merged).map_err(|error| SettingsError::Type {
            field: error.path.to_string(),
            message: error.message,
        })?;
    set_defaults(&mut config);
    let mut faults = validate(&config);
    faults.extend(system_cpus::reserve(&mut config));
    faults.extend(isolation_validation::validate(&config));
    faults.extend(resource_manager_settings::validate(&config));
    faults.extend(server_settings::validate(&config));
    if !faults.is_empty() {
        return Err(SettingsError::Invalid { faults });
    }
    Ok(config)
}

fn options(config: &KubeletConfiguration, flags: &Flags) -> Result<KubeletOptions, SettingsError> {
    let default = KubeletOptions::default();
    Ok(KubeletOptions {
        node: LocalNode {
            name: node_name(flags.hostname_override.as_deref())?,
            ips: flags.node_ips.clone(),
            root_dir: absolute(&flags.root_dir),
            pod_logs_dir: PathBuf::from(&config.pod_logs_dir),
            container_logs_dir: Some(absolute(&flags.container_logs_dir)),
            selinux: SeLinux::of(Path::new("/")),
        },
        node_labels: flags.node_labels.clone(),
        cri: cri_options(config),
        runtime: RuntimeOptions {
            image: image_options(config, flags)?,
            dns: dns_options(config),
            resources: resource_options(config),
            user_namespaces: user_namespace_options(config),
            seccomp_default: config.seccomp_default == Some(true),
        },
        cgroups: cgroups(config),
        managers: resource_manager_settings::managers(config),
        cpu_reconcile_period: span(config.cpu_manager_reconcile_period),
        system_cgroups: system_cgroups(config, flags.runtime_cgroups.as_deref()),
        capacity: capacity(config),
        eviction: eviction(config),
        image_gc: image_gc_options(config),
        container_gc: flags.container_gc,
        measurements: default.measurements,
        sync_frequency: span(config.sync_frequency),
        restart_delays: restart_delays(config),
        log_rotation: log_rotation(config),
        volume_plugin_dir: absolute(Path::new(&config.volume_plugin_dir)),
        volume_stats_period: positive_span(config.volume_stats_agg_period),
        allowed_unsafe_sysctls: config.allowed_unsafe_sysctls.clone(),
        pod_features: PodFeatures {
            pod_resources: is_on(config, POD_RESOURCES),
            pod_resize: is_on(config, POD_RESIZE),
        },
        lists_active_pods: is_on(config, LIST_ACTIVE_PODS),
        shutdown_grace_periods: shutdown_grace_periods(config),
        kernel_log: Some(KERNEL_LOG.into()),
    })
}

fn restart_delays(config: &KubeletConfiguration) -> RestartDelays {
    let default = if is_on(config, QUICK_RESTARTS) {
        RestartDelays {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(60),
        }
    } else {
        RestartDelays::default()
    };
    let longest = config.crash_loop_back_off.max_container_restart_period;
    RestartDelays {
        longest: longest.map_or(default.longest, span),
        ..default
    }
}

fn cri_options(config: &KubeletConfiguration) -> CriOptions {
    let endpoint = |text: &str| {
        unix_socket_path(text)
            .map(|path| format!("unix://{}", path.display()))
            .unwrap_or_default()
    };
    let runtime_endpoint = endpoint(&config.container_runtime_endpoint);
    CriOptions {
        image_endpoint: match config.image_service_endpoint.as_str() {
            "" => runtime_endpoint.clone(),
            text => endpoint(text),
        },
        runtime_endpoint,
        request_timeout: span(config.runtime_request_timeout),
        list_streaming: is_on(config, LIST_STREAMING),
    }
}

fn dns_options(config: &KubeletConfiguration) -> DnsOptions {
    let servers = config.cluster_dns.iter();
    let resolv_conf = config.resolver_config.as_deref();
    DnsOptions {
        resolv_conf: resolv_conf
            .filter(|path| !path.is_empty())
            .map(PathBuf::from),
        cluster_dns: servers.filter_map(|server| server.parse().ok()).collect(),
        cluster_domain: config.cluster_domain.clone(),
    }
}

fn resource_options(config: &KubeletConfiguration) -> ResourceOptions {
    let default = ResourceOptions::default();
    ResourceOptions {
        cpu_cfs_quota: config.cpu_cfs_quota.unwrap_or(default.cpu_cfs_quota),
        cpu_cfs_quota_period: config
            .cpu_cfs_quota_period
            .map_or(default.cpu_cfs_quota_period, span),
        swap_behavior: match config.memory_swap.swap_behavior.as_str() {
            "LimitedSwap" => SwapBehavior::LimitedSwap,
            _ => SwapBehavior::NoSwap,
        },
        single_process_oom_kill: config.single_process_oom_kill,
        memory_qos: memory_qos(config),
    }
}

fn user_namespace_options(config: &KubeletConfiguration) -> UserNamespaceOptions {
    let asked = config.user_namespaces.as_ref();
    let ids_per_pod = asked.and_then(|namespaces| namespaces.ids_per_pod);
    UserNamespaceOptions {
        ids_per_pod: ids_per_pod
            .and_then(|ids| u32::try_from(ids).ok())
            .unwrap_or(UserNamespaceOptions::default().ids_per_pod),
        max_pods: at_least_zero(config.max_pods),
    }
}

fn node_name(overridden: Option<&str>) -> Result<String, SettingsError> {
    let name = overridden.map_or_else(host::name, str::to_owned);
    let name = name.trim().to_lowercase();
    match names::dns1123_subdomain(&name) {
        Ok(()) => Ok(name),
        Err(rule) => Err(SettingsError::NodeName { name, rule }),
    }
}

#[cfg(test)]
mod tests;
