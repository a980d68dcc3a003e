//! The runtime manager: syncs pods with their specs on a CRI runtime, and kills and removes them.

#![forbid(unsafe_code)]

pub mod actions;
pub mod container_config;
mod cpu_sets;
mod devices;
pub mod dns;
pub mod env;
pub mod hash;
pub mod hooks;
pub mod hostname;
mod kill;
mod metrics;
pub mod mounts;
mod pod_files;
pub mod pod_state;
mod prune;
pub mod resize;
mod resolv_conf;
pub mod resources;
mod runtime_class;
pub mod sandbox_config;
pub mod security_context;
mod start;
mod start_error;
mod sub_paths;
mod sync;
pub mod termination_message;
mod termination_order;
mod terminations;
pub mod user_namespace;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::{events::EventRecorder, objects::Objects};
use kubelet_container_manager::PodCgroups;
use kubelet_cri_client::CriClient;
use kubelet_dra_manager::DraManager;
use kubelet_host::{host_ips::HostIps, local_node::LocalNode, machine::Machine};
use kubelet_image::{ImageManager, ImageOptions};
use kubelet_pod_spec::{identity::PodUid, resources::ResourceList};
use kubelet_prober::results::ProbeResults;
use kubelet_resource_managers::ResourceManagers;
use tokio_util::sync::CancellationToken;

use self::{
    cpu_sets::CpuSets,
    dns::DnsOptions,
    resize::PodGrants,
    resources::{ResourceOptions, Rules},
    terminations::Terminations,
    user_namespace::{UserNamespaceOptions, UserNamespaces},
};
pub use self::{
    hooks::HookMetrics,
    kill::{KillError, grace_period},
    metrics::StartMetrics,
    runtime_class::RuntimeClassError,
    start_error::StartError,
    sync::{PodSyncResult, SyncError},
};

/// Options of the runtime manager. The defaults are upstream's.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// Options of image pulls.
    pub image: ImageOptions,
    /// Name servers and cluster domain.
    pub dns: DnsOptions,
    /// Enforcement of resource limits.
    pub resources: ResourceOptions,
    /// ID ranges of pods with a user namespace.
    pub user_namespaces: UserNamespaceOptions,
    /// Pods without a seccomp profile get the runtime's default profile (`seccompDefault`).
    pub seccomp_default: bool,
}

/// Runs pods on the runtime. It is shared by all pod workers; the state of a single pod is in its
/// [`pod_state::PodState`].
#[derive(Debug)]
pub struct RuntimeManager {
    cri: CriClient,
    images: ImageManager,
    objects: Arc<dyn Objects>,
    probes: Arc<ProbeResults>,
    events: EventRecorder,
    node: Arc<LocalNode>,
    options: RuntimeOptions,
    host_ips: HostIps,
    cgroups: Arc<PodCgroups>,
    managers: Arc<ResourceManagers>,
    dra: DraManager,
    cpu_sets: CpuSets,
    /// Name of the runtime, once known.
    name: OnceLock<String>,
    seccomp_root: PathBuf,
    machine: Machine,
    /// What the node has without an API server.
    allocatable: Arc<ResourceList>,
    user_namespaces: UserNamespaces,
    grants: PodGrants,
    terminations: Terminations,
    metrics: StartMetrics,
    hooks: Arc<HookMetrics>,
}

/// What a runtime manager is built from.
#[derive(Debug)]
pub struct RuntimeParts {
    /// The runtime.
    pub cri: CriClient,
    /// The node.
    pub node: Arc<LocalNode>,
    /// Properties of the machine.
    pub machine: Machine,
    /// The allocatable resources of the node without an API server.
    pub allocatable: Arc<ResourceList>,
    /// Options of the manager.
    pub options: RuntimeOptions,
    /// The node's IP addresses.
    pub host_ips: HostIps,
    /// Provides config data.
    pub objects: Arc<dyn Objects>,
    /// The probe results of containers.
    pub probes: Arc<ProbeResults>,
    /// The cgroups of pods.
    pub cgroups: Arc<PodCgroups>,
    /// What containers have for themselves.
    pub managers: Arc<ResourceManagers>,
    /// The devices of resource claims.
    pub dra: DraManager,
    /// Records events.
    pub events: EventRecorder,
}

impl RuntimeManager {
    /// Creates the manager of a node's pods.
    pub fn new(parts: RuntimeParts) -> Self {
        let RuntimeParts {
            cri,
            node,
            machine,
            allocatable,
            options,
            host_ips,
            objects,
            probes,
            cgroups,
            managers,
            dra,
            events,
        } = parts;
        let (images_of, told) = (Arc::clone(&objects), events.clone());
        Self {
            images: ImageManager::new(cri.clone(), &options.image, &node.root_dir, images_of, told),
            events,
            cri,
            host_ips,
            cgroups,
            managers,
            dra,
            cpu_sets: CpuSets::default(),
            objects,
            probes,
            name: OnceLock::new(),
            seccomp_root: node.root_dir.join("seccomp"),
            machine,
            allocatable,
            user_namespaces: UserNamespaces::default(),
            grants: PodGrants::default(),
            terminations: Terminations::default(),
            metrics: StartMetrics::default(),
            hooks: Arc::default(),
            node,
            options,
        }
    }

    /// Metrics of pod and container starts.
    pub const fn metrics(&self) -> &StartMetrics {
        &self.metrics
    }

    /// Metrics of lifecycle hooks.
    pub fn hooks(&self) -> &HookMetrics {
        &self.hooks
    }

    /// Properties of the machine.
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The options and machine properties that the resources of pods depend on.
    fn rules(&self) -> Rules<'_> {
        Rules {
            options: self.options.resources,
            machine: &self.machine,
        }
    }

    /// The same for a container: one with CPUs of its own has no CPU quota.
    fn rules_of(&self, pod: &Pod, container: &str) -> Rules<'_> {
        let mut rules = self.rules();
        let is_exempt = self.managers.is_without_quota(&PodUid::of(pod), container);
        rules.options.cpu_cfs_quota &= !is_exempt;
        rules
    }

    /// What containers have for themselves.
    pub fn managers(&self) -> &ResourceManagers {
        &self.managers
    }

    /// The source of API objects, such as config data.
    pub fn objects(&self) -> &dyn Objects {
        &*self.objects
    }

    /// The image manager.
    pub fn images(&self) -> &ImageManager {
        &self.images
    }

    /// Tells when the node's `resolv.conf` exceeds the limits of resolvers, until cancelled.
    pub async fn watch_resolv_conf(&self, cancel: CancellationToken) {
        resolv_conf::watch(&self.options.dns, &self.events, cancel).await;
    }

    /// The probe results.
    pub fn probes(&self) -> &ProbeResults {
        &self.probes
    }

    /// Stores the name that the runtime reports.
    pub fn set_name(&self, name: String) {
        // The first name is kept even if another runtime replaces this one under a running kubelet:
        // container IDs must not change.
        let _ = self.name.set(name);
    }

    /// The name of the runtime; empty while unknown.
    pub fn name(&self) -> &str {
        self.name.get().map_or("", String::as_str)
    }
}
