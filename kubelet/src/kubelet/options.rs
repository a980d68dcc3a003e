//! The options of a kubelet.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use kubelet_container_manager::SystemCgroupOptions;
use kubelet_cri_client::CriOptions;
use kubelet_eviction::EvictionOptions;
use kubelet_garbage_collector::{ContainerGcOptions, ImageGcOptions};
use kubelet_host::local_node::LocalNode;
use kubelet_logs::RotationPolicy;
use kubelet_node::{capacity::CapacityOptions, shutdown::order::ShutdownGracePeriod};
use kubelet_resource_managers::ResourceManagerOptions;
use kubelet_runtime::{RuntimeOptions, pod_state::RestartDelays};

use crate::{
    node_pressure::MeasurementSource, pod::features::PodFeatures,
    pod_cgroups::options::CgroupOptions,
};

/// Options of the kubelet and of its parts, after flags, file and defaults are merged.
#[derive(Clone, Debug)]
pub struct KubeletOptions {
    /// The node that it runs on.
    pub node: LocalNode,
    /// Labels of the node (`--node-labels`).
    pub node_labels: BTreeMap<String, String>,
    /// The runtime's endpoints.
    pub cri: CriOptions,
    /// How pods are run.
    pub runtime: RuntimeOptions,
    /// The cgroups of pods; none if the runtime chooses where it creates those of containers
    /// (`cgroupsPerQOS` is false).
    pub cgroups: Option<CgroupOptions>,
    /// What containers can have for themselves.
    pub managers: ResourceManagerOptions,
    /// How often the CPUs of containers are compared with what they should be
    /// (`cpuManagerReconcilePeriod`).
    pub cpu_reconcile_period: Duration,
    /// The cgroups of the node's daemons.
    pub system_cgroups: SystemCgroupOptions,
    /// The node's capacity for pods.
    pub capacity: CapacityOptions,
    /// When pods are evicted.
    pub eviction: EvictionOptions,
    /// When images are removed.
    pub image_gc: ImageGcOptions,
    /// How many dead containers are kept.
    pub container_gc: ContainerGcOptions,
    /// Where the measurements for eviction come from.
    pub measurements: MeasurementSource,
    /// How often a pod without changes is synced (`syncFrequency`).
    pub sync_frequency: Duration,
    /// The crash-loop back-off (`crashLoopBackOff`).
    pub restart_delays: RestartDelays,
    /// Rotation of container logs; none when unset.
    pub log_rotation: Option<RotationPolicy>,
    /// Directory of the FlexVolume drivers (`volumePluginDir`).
    pub volume_plugin_dir: PathBuf,
    /// How often volumes and logs are measured (`volumeStatsAggPeriod`); never when unset.
    pub volume_stats_period: Option<Duration>,
    /// Unsafe sysctls that pods may set: names, or prefixes followed by `*`
    /// (`allowedUnsafeSysctls`).
    pub allowed_unsafe_sysctls: Vec<String>,
    /// What feature gates let pods have.
    pub pod_features: PodFeatures,
    /// Whether the pod resources API lists only pods that run or will run
    /// (`KubeletPodResourcesListUseActivePods`).
    pub lists_active_pods: bool,
    /// Grace periods of pods at a node shutdown, sorted by priority (`shutdownGracePeriod`,
    /// `shutdownGracePeriodCriticalPods`, `shutdownGracePeriodByPodPriority`). If empty, a shutdown
    /// does not wait for pods.
    pub shutdown_grace_periods: Vec<ShutdownGracePeriod>,
    /// The kernel's log, which is read for OOM kills; none leaves their detection to the runtime.
    pub kernel_log: Option<PathBuf>,
}

impl Default for KubeletOptions {
    /// Upstream's defaults, on a node named `localhost` without cgroups of pods and a kernel log.
    fn default() -> Self {
        Self {
            node: LocalNode::default(),
            node_labels: BTreeMap::new(),
            cri: CriOptions::default(),
            runtime: RuntimeOptions::default(),
            cgroups: None,
            managers: ResourceManagerOptions::default(),
            cpu_reconcile_period: Duration::from_secs(10),
            system_cgroups: SystemCgroupOptions::default(),
            capacity: CapacityOptions::default(),
            eviction: EvictionOptions::default(),
            image_gc: ImageGcOptions::default(),
            container_gc: ContainerGcOptions::default(),
            measurements: MeasurementSource::default(),
            sync_frequency: Duration::from_secs(60),
            restart_delays: RestartDelays::default(),
            log_rotation: Some(RotationPolicy::default()),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/".into(),
            volume_stats_period: Some(Duration::from_secs(60)),
            allowed_unsafe_sysctls: Vec::new(),
            pod_features: PodFeatures::default(),
            lists_active_pods: true,
            shutdown_grace_periods: Vec::new(),
            kernel_log: None,
        }
    }
}
