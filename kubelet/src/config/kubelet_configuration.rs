//! `KubeletConfiguration` of `kubelet.config.k8s.io/v1beta1`. It has all fields of the format, so
//! that any file written for the upstream kubelet parses.
//!
//! As upstream, a field whose zero value means "not set" has a plain type, and a field where zero
//! is a valid value is an `Option`; [`super::kubelet_defaults`] sets the defaults of both.

use std::{collections::BTreeMap, fmt};

use go_duration::GoDuration;
use k8s_openapi::{api::core::v1::Taint, apimachinery::pkg::api::resource::Quantity};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Unexpected, Visitor},
};

/// The supported group and version.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The supported kind.
pub const KIND: &str = "KubeletConfiguration";

pub(super) type StringMap = BTreeMap<String, String>;

/// The kubelet's configuration file.
#[allow(
    missing_docs,
    reason = "the fields are upstream's, named and documented by the KubeletConfiguration reference"
)]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct KubeletConfiguration {
    pub api_version: String,
    pub kind: String,
    pub enable_server: Option<bool>,
    pub static_pod_path: String,
    pub pod_logs_dir: String,
    pub sync_frequency: GoDuration,
    pub file_check_frequency: GoDuration,
    pub http_check_frequency: GoDuration,
    #[serde(rename = "staticPodURL")]
    pub static_pod_url: String,
    #[serde(rename = "staticPodURLHeader")]
    pub static_pod_url_header: BTreeMap<String, Vec<String>>,
    pub address: String,
    pub port: i32,
    pub read_only_port: i32,
    pub tls_cert_file: String,
    pub tls_private_key_file: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_curve_preferences: Vec<i32>,
    pub tls_min_version: String,
    pub rotate_certificates: bool,
    #[serde(rename = "serverTLSBootstrap")]
    pub server_tls_bootstrap: bool,
    pub authentication: Authentication,
    pub authorization: Authorization,
    #[serde(rename = "registryPullQPS")]
    pub registry_pull_qps: Option<i32>,
    pub registry_burst: i32,
    pub image_pull_credentials_verification_policy: String,
    pub preloaded_images_verification_allowlist: Vec<String>,
    #[serde(rename = "eventRecordQPS")]
    pub event_record_qps: Option<i32>,
    pub event_burst: i32,
    pub enable_debugging_handlers: Option<bool>,
    pub enable_contention_profiling: bool,
    pub healthz_port: Option<i32>,
    pub healthz_bind_address: String,
    pub oom_score_adj: Option<i32>,
    pub cluster_domain: String,
    #[serde(rename = "clusterDNS")]
    pub cluster_dns: Vec<String>,
    pub streaming_connection_idle_timeout: GoDuration,
    pub node_status_update_frequency: GoDuration,
    pub node_status_report_frequency: GoDuration,
    pub node_lease_duration_seconds: i32,
    #[serde(rename = "imageMinimumGCAge")]
    pub image_minimum_gc_age: GoDuration,
    #[serde(rename = "imageMaximumGCAge")]
    pub image_maximum_gc_age: GoDuration,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub image_gc_high_threshold_percent: Option<i32>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub image_gc_low_threshold_percent: Option<i32>,
    pub volume_stats_agg_period: GoDuration,
    pub kubelet_cgroups: String,
    pub system_cgroups: String,
    pub cgroup_root: String,
    #[serde(rename = "cgroupsPerQOS")]
    pub cgroups_per_qos: Option<bool>,
    pub cgroup_driver: String,
    pub cpu_manager_policy: String,
    #[serde(rename = "singleProcessOOMKill")]
    pub single_process_oom_kill: Option<bool>,
    pub cpu_manager_policy_options: StringMap,
    pub cpu_manager_reconcile_period: GoDuration,
    pub memory_manager_policy: String,
    pub topology_manager_policy: String,
    pub topology_manager_scope: String,
    pub topology_manager_policy_options: StringMap,
    pub qos_reserved: StringMap,
    pub runtime_request_timeout: GoDuration,
    pub hairpin_mode: String,
    pub max_pods: i32,
    #[serde(rename = "podCIDR")]
    pub pod_cidr: String,
    pub pod_pids_limit: Option<i64>,
    #[serde(rename = "resolvConf")]
    pub resolver_config: Option<String>,
    pub run_once: bool,
    #[serde(rename = "cpuCFSQuota")]
    pub cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub cpu_cfs_quota_period: Option<GoDuration>,
    pub node_status_max_images: Option<i32>,
    pub max_open_files: i64,
    pub content_type: String,
    #[serde(rename = "kubeAPIQPS")]
    pub kube_api_qps: Option<i32>,
    #[serde(rename = "kubeAPIBurst")]
    pub kube_api_burst: i32,
    pub serialize_image_pulls: Option<bool>,
    pub max_parallel_image_pulls: Option<i32>,
    pub eviction_hard: Option<StringMap>,
    pub eviction_soft: StringMap,
    pub eviction_soft_grace_period: StringMap,
    pub eviction_pressure_transition_period: GoDuration,
    pub eviction_max_pod_grace_period: i32,
    pub eviction_minimum_reclaim: StringMap,
    pub merge_default_eviction_settings: Option<bool>,
    pub pods_per_core: i32,
    pub enable_controller_attach_detach: Option<bool>,
    pub protect_kernel_defaults: bool,
    #[serde(rename = "makeIPTablesUtilChains")]
    pub make_iptables_util_chains: Option<bool>,
    pub iptables_masquerade_bit: Option<i32>,
    pub iptables_drop_bit: Option<i32>,
    pub feature_gates: BTreeMap<String, bool>,
    pub fail_swap_on: Option<bool>,
    pub memory_swap: MemorySwap,
    pub container_log_max_size: String,
    pub container_log_max_files: Option<i32>,
    pub container_log_max_workers: Option<i32>,
    pub container_log_monitor_interval: Option<GoDuration>,
    pub config_map_and_secret_change_detection_strategy: String,
    pub system_reserved: StringMap,
    pub kube_reserved: StringMap,
    #[serde(rename = "reservedSystemCPUs")]
    pub reserved_system_cpus: String,
    pub show_hidden_metrics_for_version: String,
    pub system_reserved_cgroup: String,
    pub kube_reserved_cgroup: String,
    pub enforce_node_allocatable: Option<Vec<String>>,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub volume_plugin_dir: String,
    #[serde(rename = "providerID")]
    pub provider_id: String,
    pub kernel_memcg_notification: bool,
    pub logging: Logging,
    pub enable_system_log_handler: Option<bool>,
    pub enable_system_log_query: Option<bool>,
    pub shutdown_grace_period: GoDuration,
    pub shutdown_grace_period_critical_pods: GoDuration,
    pub shutdown_grace_period_by_pod_priority: Vec<ShutdownGracePeriodByPodPriority>,
    pub crash_loop_back_off: CrashLoopBackOff,
    pub reserved_memory: Vec<MemoryReservation>,
    pub enable_profiling_handler: Option<bool>,
    pub enable_debug_flags_handler: Option<bool>,
    pub seccomp_default: Option<bool>,
    pub memory_throttling_factor: Option<f64>,
    pub memory_reservation_policy: String,
    pub register_with_taints: Vec<Taint>,
    pub register_node: Option<bool>,
    pub tracing: Option<Tracing>,
    pub local_storage_capacity_isolation: Option<bool>,
    pub container_runtime_endpoint: String,
    pub image_service_endpoint: String,
    #[serde(rename = "failCgroupV1")]
    pub fail_cgroup_v1: Option<bool>,
    pub user_namespaces: Option<UserNamespaces>,
}

/// Authentication for the kubelet's API.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Authentication {
    pub x509: X509Authentication,
    pub webhook: WebhookAuthentication,
    pub anonymous: AnonymousAuthentication,
}

/// Authentication by client certificate.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct X509Authentication {
    #[serde(rename = "clientCAFile")]
    pub client_ca_file: String,
}

/// Authentication by bearer token, reviewed by the API server.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WebhookAuthentication {
    pub enabled: Option<bool>,
    #[serde(rename = "cacheTTL")]
    pub cache_ttl: GoDuration,
}

/// Anonymous requests.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct AnonymousAuthentication {
    pub enabled: Option<bool>,
}

/// Authorization for the kubelet's API.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Authorization {
    pub mode: String,
    pub webhook: WebhookAuthorization,
}

/// Caching of the API server's SubjectAccessReviews.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct WebhookAuthorization {
    #[serde(rename = "cacheAuthorizedTTL")]
    pub cache_authorized_ttl: GoDuration,
    #[serde(rename = "cacheUnauthorizedTTL")]
    pub cache_unauthorized_ttl: GoDuration,
}

/// Swap for pods.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct MemorySwap {
    pub swap_behavior: String,
}

/// The kubelet's log.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Logging {
    pub format: String,
    pub flush_frequency: Option<FlushFrequency>,
    pub verbosity: u32,
    pub vmodule: Vec<VModuleItem>,
    pub options: LoggingOptions,
}

/// A duration, or nanoseconds as in older files.
#[derive(Clone, Copy, Debug)]
pub struct FlushFrequency(GoDuration);

impl<'de> Deserialize<'de> for FlushFrequency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FlushFrequencyVisitor)
    }
}

struct FlushFrequencyVisitor;

impl Visitor<'_> for FlushFrequencyVisitor {
    type Value = FlushFrequency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration like \"5s\", or nanoseconds")
    }

    fn visit_u64<E: de::Error>(self, nanos: u64) -> Result<FlushFrequency, E> {
        i64::try_from(nanos)
            .map(|nanos| FlushFrequency(GoDuration::from_nanos(nanos)))
            .map_err(|_| E::invalid_value(Unexpected::Unsigned(nanos), &self))
    }

    fn visit_i64<E: de::Error>(self, nanos: i64) -> Result<FlushFrequency, E> {
        match u64::try_from(nanos) {
            Ok(nanos) => self.visit_u64(nanos),
            Err(_) => Err(E::custom("must not be negative")),
        }
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<FlushFrequency, E> {
        text.parse().map(FlushFrequency).map_err(E::custom)
    }
}

impl Serialize for FlushFrequency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Verbosity of the source files that match a pattern.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct VModuleItem {
    pub file_pattern: String,
    pub verbosity: u32,
}

/// Options of the log formats.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct LoggingOptions {
    pub text: OutputRouting,
    pub json: OutputRouting,
}

/// Where log lines go.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct OutputRouting {
    pub split_stream: bool,
    pub info_buffer_size: Option<Quantity>,
}

/// Shutdown grace period of a pod priority.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ShutdownGracePeriodByPodPriority {
    pub priority: i32,
    pub shutdown_grace_period_seconds: i64,
}

/// Back-off of crashing containers.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct CrashLoopBackOff {
    pub max_container_restart_period: Option<GoDuration>,
}

/// Reserved memory of a NUMA node.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct MemoryReservation {
    pub numa_node: i32,
    pub limits: BTreeMap<String, Quantity>,
}

/// Export of the kubelet's traces.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Tracing {
    pub endpoint: Option<String>,
    pub sampling_rate_per_million: Option<i32>,
}

/// Sizes of pods' user namespaces.
#[allow(missing_docs, reason = "as for KubeletConfiguration")]
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct UserNamespaces {
    pub ids_per_pod: Option<i64>,
}
