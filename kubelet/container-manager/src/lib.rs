//! The cgroups of the node: one per pod and QoS class, and the limits of all pods together.
//!
//! ```text
//! <cgroup root>/kubepods          all pods: what is allocatable; the guaranteed ones directly in it
//! ├── pod<uid>
//! ├── burstable/pod<uid>
//! └── besteffort/pod<uid>
//! ```
//!
//! A pod's cgroup exists before its sandbox, with the limits of its spec, until its volumes are
//! released: what its memory-backed volumes use stays charged to it. Outside `kubepods`, only the
//! cgroups of `kubeletCgroups` and `systemCgroups` are created, and none are removed.

#![forbid(unsafe_code)]

pub mod cgroup;
mod options;
mod pod_cgroup;
mod pod_cgroups;
mod pod_config;
mod qos;
mod system_cgroups;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::{cpu, identity::PodUid, qos::QosClass};
use kubelet_resource_managers::ResourceManagers;
use parking_lot::Mutex;
use tracing::debug;

use self::{
    cgroup::{CgroupConfig, CgroupError, CgroupName, CgroupState, Cgroups},
    qos::{MemoryReserve, Protected, QosRules},
};
pub use self::{
    options::{
        ContainerManagerOptions, Enforcement, Limits, MemoryReservationPolicy, NodeLimits,
        PodCgroupOptions,
    },
    pod_cgroup::PodCgroup,
    pod_cgroups::PodCgroups,
    system_cgroups::{SystemCgroupOptions, SystemCgroups},
};

/// The cgroup of all pods.
const PODS: &str = "kubepods";
const BURSTABLE: &str = "burstable";
const BEST_EFFORT: &str = "besteffort";
/// Prefix of the cgroups of pods.
const POD: &str = "pod";

/// Manages the cgroups of the node.
#[derive(Debug)]
pub struct ContainerManager {
    cgroups: Arc<dyn Cgroups>,
    options: ContainerManagerOptions,
    root: CgroupName,
    pods: CgroupName,
    burstable: CgroupName,
    best_effort: CgroupName,
    /// Sizes of huge pages in bytes.
    page_sizes: Vec<u64>,
    /// Pods with CPUs of their own have no CPU quota.
    managers: Arc<ResourceManagers>,
    /// The pods whose cgroups this process has created or found.
    known: Mutex<BTreeSet<PodUid>>,
    /// The running pods that have no cgroup, because they were started without one.
    without: Mutex<BTreeSet<PodUid>>,
    /// The memory of pods that is protected from reclaim.
    protected: Mutex<Protected>,
}

impl ContainerManager {
    /// Creates the container manager. `page_sizes` are the machine's sizes of huge pages.
    ///
    /// # Errors
    /// The cgroup root of the options is no cgroup's name.
    pub fn new(
        cgroups: Arc<dyn Cgroups>,
        options: ContainerManagerOptions,
        page_sizes: Vec<u64>,
        managers: Arc<ResourceManagers>,
    ) -> Result<Self, CgroupError> {
        let root = CgroupName::parse(&options.cgroup_root)?;
        let pods = root.child(PODS)?;
        // A name that the driver cannot have is found before there are pods.
        pods.path(cgroups.driver())?;
        Ok(Self {
            burstable: pods.child(BURSTABLE)?,
            best_effort: pods.child(BEST_EFFORT)?,
            cgroups,
            options,
            root,
            pods,
            page_sizes,
            managers,
            known: Mutex::default(),
            without: Mutex::default(),
            protected: Mutex::default(),
        })
    }

    /// Creates the cgroups of all pods and of the QoS classes.
    ///
    /// # Errors
    /// The cgroup root does not exist, or a cgroup cannot be created.
    pub async fn start(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        if !self.root.is_root() {
            self.require(&self.root).await?;
        }
        let configs = qos::without_pods(self.qos_rules(node), self.cgroups.is_v2());
        // Pods that run already may use more than what is allocatable now.
        if self.is_complete(&self.pods).await? {
            let config = CgroupConfig {
                unified: configs.guaranteed.unified,
                ..CgroupConfig::default()
            };
            self.cgroups.update(&self.pods, &config).await?;
        } else {
            let limits = self.limits_of_pods(node);
            self.cgroups.create(&self.pods, &limits).await?;
        }
        for (name, config) in [
            (&self.burstable, configs.burstable),
            (&self.best_effort, configs.best_effort),
        ] {
            if self.is_complete(name).await? {
                self.cgroups.update(name, &config).await?;
            } else {
                self.cgroups.create(name, &config).await?;
            }
        }
        Ok(())
    }

    /// Enforces what is allocatable to pods. Fails while the pods use more than that.
    ///
    /// # Errors
    /// The kernel refuses the limits.
    pub async fn enforce_allocatable(&self, node: &NodeLimits) -> Result<(), CgroupError> {
        self.cgroups
            .update(&self.pods, &self.limits_of_pods(node))
            .await
    }

    /// The cgroup of all pods.
    pub const fn pods_cgroup(&self) -> &CgroupName {
        &self.pods
    }

    /// The paths of the cgroups of the burstable and of the best-effort pods below the root of a
    /// hierarchy.
    pub fn paths_of_classes(&self) -> [Option<String>; 2] {
        let driver = self.cgroups.driver();
        [&self.burstable, &self.best_effort].map(|name| name.path(driver).ok())
    }

    /// Enforces the reservations of the node's daemons. Returns the outcome for each cgroup.
    pub async fn enforce_reserved(&self, node: &NodeLimits) -> Vec<EnforcedReservation> {
        let mut enforced = Vec::new();
        for enforcement in &self.options.enforce {
            let (cgroup, limits) = match enforcement {
                Enforcement::Pods => continue,
                Enforcement::KubeReserved | Enforcement::KubeReservedCompressible => {
                    (&self.options.kube_reserved_cgroup, &node.kube_reserved)
                }
                Enforcement::SystemReserved | Enforcement::SystemReservedCompressible => {
                    (&self.options.system_reserved_cgroup, &node.system_reserved)
                }
            };
            let mut config = config(limits);
            if self.options.pods.memory_qos.is_some()
                && let Some(memory) = limits.memory
            {
                config.unified.insert("memory.min", memory.to_string());
            }
            if enforcement.is_compressible() {
                config = CgroupConfig {
                    cpu_shares: config.cpu_shares,
                    ..CgroupConfig::default()
                };
            }
            enforced.push(EnforcedReservation {
                enforcement: *enforcement,
                cgroup: cgroup.clone(),
                result: self.enforce(cgroup, &config).await,
            });
        }
        enforced
    }

    /// Limits a cgroup that the kubelet did not create.
    async fn enforce(&self, cgroup: &str, config: &CgroupConfig) -> Result<(), CgroupError> {
        let name = CgroupName::parse_existing(cgroup, self.cgroups.driver())?;
        self.require(&name).await?;
        self.cgroups.update(&name, config).await
    }

    /// Brings the cgroups of the QoS classes up to date with the active pods.
    ///
    /// # Errors
    /// The kernel refuses a limit, or a cgroup is gone.
    pub async fn update_qos(
        &self,
        node: &NodeLimits,
        pods: &[Arc<Pod>],
    ) -> Result<(), CgroupError> {
        let configs = qos::of_pods(pods, self.qos_rules(node));
        *self.protected.lock() = configs.protected;
        self.cgroups.update(&self.pods, &configs.guaranteed).await?;
        self.update_class(&self.burstable, configs.burstable)
            .await?;
        self.update_class(&self.best_effort, configs.best_effort)
            .await
    }

    /// Updates the cgroup of a class. Its memory is not limited to less than it needs: the kernel
    /// would kill its pods, or refuse the limit. The limit still keeps it from growing.
    async fn update_class(
        &self,
        name: &CgroupName,
        mut config: CgroupConfig,
    ) -> Result<(), CgroupError> {
        let Some(limit) = config.memory else {
            return self.cgroups.update(name, &config).await;
        };
        let usage = self.cgroups.memory_usage(name).await?;
        config.memory = Some(limit.max(usage.working_set));
        let Err(error) = self.cgroups.update(name, &config).await else {
            return Ok(());
        };
        debug!(cgroup = %name, %error, "limiting the memory of a QoS class to what it uses");
        config.memory = Some(limit.max(usage.total));
        self.cgroups.update(name, &config).await
    }

    fn qos_rules(&self, node: &NodeLimits) -> QosRules<'_> {
        let percent = self.options.qos_reserved_memory;
        let allocatable = node.allocatable.memory;
        QosRules {
            page_sizes: &self.page_sizes,
            memory_qos: self
                .options
                .pods
                .memory_qos
                .filter(|_| self.cgroups.is_v2()),
            reserve: percent
                .zip(allocatable)
                .map(|(percent, allocatable)| MemoryReserve {
                    percent,
                    allocatable,
                }),
        }
    }

    fn limits_of_pods(&self, node: &NodeLimits) -> CgroupConfig {
        let enforced = self.options.enforce.contains(&Enforcement::Pods);
        config(if enforced {
            &node.allocatable
        } else {
            &node.capacity
        })
    }

    async fn is_complete(&self, name: &CgroupName) -> Result<bool, CgroupError> {
        Ok(self.cgroups.state(name).await? == CgroupState::Complete)
    }

    async fn require(&self, name: &CgroupName) -> Result<(), CgroupError> {
        let name = name.clone();
        match self.cgroups.state(&name).await? {
            CgroupState::Complete => Ok(()),
            CgroupState::Absent => Err(CgroupError::Absent(name)),
            CgroupState::Incomplete(missing) => Err(CgroupError::Incomplete { name, missing }),
        }
    }

    fn class(&self, spec: Option<&PodSpec>) -> &CgroupName {
        match spec.map_or(QosClass::BestEffort, QosClass::of) {
            QosClass::Guaranteed => &self.pods,
            QosClass::Burstable => &self.burstable,
            QosClass::BestEffort => &self.best_effort,
        }
    }
}

impl Collector for ContainerManager {
    fn collect(&self, page: &mut Exposition) {
        self.cgroups.collect(page);
        if self.options.pods.memory_qos.is_none() {
            return;
        }
        let Protected { min, low } = *self.protected.lock();
        page.gauge(
            "kubelet_memory_qos_node_memory_min_bytes",
            "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.",
            min,
        );
        page.gauge(
            "kubelet_memory_qos_node_memory_low_bytes",
            "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.",
            low,
        );
    }
}

/// The outcome of the enforcement of a reservation.
#[derive(Debug)]
pub struct EnforcedReservation {
    /// What was to be enforced.
    pub enforcement: Enforcement,
    /// The cgroup, as configured.
    pub cgroup: String,
    /// Fails if the cgroup does not exist, or the kernel refuses its limits.
    pub result: Result<(), CgroupError>,
}

/// The limits of a cgroup that shares the node with others: CPU is a weight.
fn config(limits: &Limits) -> CgroupConfig {
    CgroupConfig {
        cpu_shares: limits.cpu.map(cpu::shares),
        memory: limits.memory,
        pids: limits.pids,
        huge_pages: Some(limits.huge_pages.clone()),
        ..CgroupConfig::default()
    }
}

/// The cgroups of pods by UID, for pods that are gone.
pub type Leftovers = BTreeMap<PodUid, CgroupName>;
