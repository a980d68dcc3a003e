//! What flags and `KubeletConfiguration` amount to: the values that the parts of
//! the kubelet are built from.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, time::Duration};

use kubelet_host::selinux::SeLinux;
use kubelet_image::ImageOptions;
use kubelet_logs::RotationPolicy;

use super::reservation::Reservation;

use crate::node::shutdown::order::ShutdownGracePeriod;

/// Values of one run of the kubelet, after flags, file and defaults are merged.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of this node: `--hostname-override` or the host's name in lower case.
    pub node_name: String,
    /// Labels that its user gives it (`--node-labels`).
    pub node_labels: BTreeMap<String, String>,
    /// Addresses of this node as they were given (`--node-ip`), at most one of each family,
    /// the primary first; the unspecified one of a family asks for that family's own.
    pub node_ips: Vec<IpAddr>,
    /// The kubelet's own files (`--root-dir`).
    pub root_dir: PathBuf,
    /// Directory of the pods' log directories (`podLogsDir`).
    pub pod_logs_dir: PathBuf,
    /// Directory of links to the logs of containers (`--container-logs-dir`); no
    /// links are made when unset.
    pub container_logs_dir: Option<PathBuf>,
    /// When logs of containers are rotated; never when unset.
    pub log_rotation: Option<RotationPolicy>,
    /// `unix://` endpoint of the CRI runtime service.
    pub container_runtime_endpoint: String,
    /// `unix://` endpoint of the CRI image service; the runtime's when unset.
    pub image_service_endpoint: String,
    /// Deadline of CRI calls other than pulls and stops (`runtimeRequestTimeout`).
    pub runtime_request_timeout: Duration,
    /// How often a pod is synced when nothing happens to it (`syncFrequency`).
    pub sync_frequency: Duration,
    /// The `resolv.conf` that `dnsPolicy: Default` hands to pods; none when empty.
    pub resolv_conf: Option<PathBuf>,
    /// Name servers of the cluster (`clusterDNS`), for `dnsPolicy: ClusterFirst`.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster (`clusterDomain`).
    pub cluster_domain: String,
    /// How images are pulled.
    pub image: ImageOptions,
    /// Upper bound of the crash-loop back-off (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub max_container_restart_period: Duration,
    /// Most pods that this node runs (`maxPods`).
    pub max_pods: u32,
    /// Most pods per core (`podsPerCore`); no limit when 0.
    pub pods_per_core: u32,
    /// Local storage is accounted for (`localStorageCapacityIsolation`).
    pub local_storage: bool,
    /// What of the node pods do not get.
    pub reservation: Reservation,
    /// CPU limits are enforced (`cpuCFSQuota`).
    pub cpu_cfs_quota: bool,
    /// In which time a CPU limit holds (`cpuCFSQuotaPeriod`).
    pub cpu_cfs_quota_period: Duration,
    /// What containers may do with swap (`memorySwap.swapBehavior`).
    pub swap_behavior: SwapBehavior,
    /// Whether the kernel kills one process of a container that is out of memory, and not
    /// all of it (`singleProcessOOMKill`); all of it where it can, when unset.
    pub single_process_oom_kill: Option<bool>,
    /// How long pods may take to end when the node shuts down, sorted by priority
    /// (`shutdownGracePeriod`, `shutdownGracePeriodCriticalPods`,
    /// `shutdownGracePeriodByPodPriority`); a shutdown does not wait for pods when empty.
    pub shutdown_grace_periods: Vec<ShutdownGracePeriod>,
    /// The runtime's seccomp profile is that of pods that name none (`seccompDefault`).
    pub seccomp_default: bool,
    /// Sysctls that pods may set beside the safe ones, or beginnings of their names and `*`
    /// (`allowedUnsafeSysctls`).
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Ids of one pod's user namespace (`userNamespaces.idsPerPod`).
    pub user_namespace_ids_per_pod: u32,
    /// SELinux, where this node has it.
    pub selinux: Option<SeLinux>,
}

/// What containers may do with swap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SwapBehavior {
    /// None of them swaps.
    #[default]
    NoSwap,
    /// Those of burstable pods swap, each as much of the node's swap as it requests of the
    /// node's memory.
    LimitedSwap,
}

impl Default for Options {
    /// Upstream's defaults, on a node named `localhost` without addresses or SELinux, with
    /// nothing reserved and without links to logs.
    fn default() -> Self {
        Self {
            node_name: "localhost".to_owned(),
            node_labels: BTreeMap::new(),
            node_ips: Vec::new(),
            root_dir: PathBuf::from("/var/lib/kubelet"),
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            container_logs_dir: None,
            log_rotation: Some(RotationPolicy {
                max_size: 10 << 20,
                max_files: 5,
                max_workers: 1,
                monitor_interval: Duration::from_secs(10),
            }),
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".to_owned(),
            image_service_endpoint: String::new(),
            runtime_request_timeout: Duration::from_secs(120),
            sync_frequency: Duration::from_secs(60),
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            image: ImageOptions::default(),
            max_container_restart_period: Duration::from_secs(300),
            max_pods: 110,
            pods_per_core: 0,
            local_storage: true,
            reservation: Reservation::default(),
            cpu_cfs_quota: true,
            cpu_cfs_quota_period: Duration::from_millis(100),
            swap_behavior: SwapBehavior::NoSwap,
            single_process_oom_kill: None,
            shutdown_grace_periods: Vec::new(),
            seccomp_default: false,
            allowed_unsafe_sysctls: Vec::new(),
            user_namespace_ids_per_pod: 65_536,
            selinux: None,
        }
    }
}
