//! The runtime manager: brings pods on a CRI runtime to what their specs ask
//! for, and kills and removes them.

#![forbid(unsafe_code)]

pub mod actions;
pub mod container_config;
pub mod dns;
mod endings;
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
pub mod resources;
mod runtime_class;
pub mod sandbox_config;
pub mod security_context;
mod start;
mod sub_paths;
mod sync;
pub mod termination_message;
mod termination_order;
pub mod user_namespace;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use kubelet_api_client::{events::EventRecorder, objects::Objects};
use kubelet_cri_client::CriClient;
use kubelet_host::{host_ips::HostIps, local_node::LocalNode, machine::Machine};
use kubelet_image::{ImageManager, ImageOptions};
use kubelet_prober::results::ProbeResults;

use self::{
    dns::DnsOptions,
    endings::Endings,
    resize::Resizes,
    resources::{ResourceOptions, Rules},
    user_namespace::{UserNamespaceOptions, UserNamespaces},
};
pub use self::{
    kill::{KillError, grace_period},
    metrics::StartMetrics,
    runtime_class::RuntimeClassError,
    start::StartError,
    sync::{SyncError, Synced},
};

/// How pods are run. The default is upstream's.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// How images are pulled.
    pub image: ImageOptions,
    /// Where pods look names up.
    pub dns: DnsOptions,
    /// How limits of resources are enforced.
    pub resources: ResourceOptions,
    /// Ids of pods with a user namespace.
    pub user_namespaces: UserNamespaceOptions,
    /// The runtime's seccomp profile is that of pods that name none (`seccompDefault`).
    pub seccomp_default: bool,
}

/// Runs pods on the runtime. Shared by all pod workers; what belongs to one pod
/// is in its [`pod_state::PodState`].
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
    /// Name of the runtime, once it was asked.
    name: OnceLock<String>,
    seccomp_root: PathBuf,
    machine: Machine,
    user_namespaces: UserNamespaces,
    resizes: Resizes,
    endings: Endings,
    metrics: StartMetrics,
}

impl RuntimeManager {
    /// A manager of the pods of `node` on the runtime behind `cri`. Config data comes from
    /// `objects`, what probes found from `probes`, the node's addresses from `host_ips`.
    /// What it does is told to `events`.
    pub fn new(
        cri: CriClient,
        node: Arc<LocalNode>,
        options: RuntimeOptions,
        host_ips: HostIps,
        objects: Arc<dyn Objects>,
        probes: Arc<ProbeResults>,
        events: EventRecorder,
    ) -> Self {
        let (images_of, told) = (Arc::clone(&objects), events.clone());
        Self {
            images: ImageManager::new(cri.clone(), &options.image, &node.root_dir, images_of, told),
            events,
            cri,
            host_ips,
            objects,
            probes,
            name: OnceLock::new(),
            seccomp_root: node.root_dir.join("seccomp"),
            machine: Machine::read(),
            user_namespaces: UserNamespaces::default(),
            resizes: Resizes::default(),
            endings: Endings::default(),
            metrics: StartMetrics::default(),
            node,
            options,
        }
    }

    /// What was started.
    pub const fn metrics(&self) -> &StartMetrics {
        &self.metrics
    }

    /// What the machine has.
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// What bounds the resources of containers.
    fn rules(&self) -> Rules<'_> {
        Rules {
            options: self.options.resources,
            machine: &self.machine,
        }
    }

    /// Where config data comes from.
    pub fn objects(&self) -> &dyn Objects {
        &*self.objects
    }

    /// Where images come from.
    pub fn images(&self) -> &ImageManager {
        &self.images
    }

    /// What probes found.
    pub fn probes(&self) -> &ProbeResults {
        &self.probes
    }

    /// Notes what the runtime calls itself.
    pub fn set_name(&self, name: String) {
        // A runtime that is replaced by another one under a running kubelet keeps
        // the first one's name: ids must not change.
        let _ = self.name.set(name);
    }

    /// What the runtime calls itself; empty before it was asked.
    pub fn name(&self) -> &str {
        self.name.get().map_or("", String::as_str)
    }
}
