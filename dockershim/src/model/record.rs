//! Records of single containers, converted from the engine's answers to CRI's types.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use cri_proto::runtime::v1::{ContainerStatus, NamespaceMode, PodSandboxState, PodSandboxStatus};

use super::{
    Snapshot,
    convert::{container, sandbox},
};
use crate::labels::{self, Author, image_mounts::ImageMountsByPath};

/// The engine's answer about one of the shim's Docker containers.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A sandbox.
    Sandbox(Arc<Sandbox>),
    /// A container in a sandbox.
    Container(Arc<Container>),
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// The CRI status.
    pub status: PodSandboxStatus,
    /// The Docker name.
    pub docker_name: String,
    /// The pid of the first process; 0 if not running.
    pub pid: i64,
    /// Whether it was ever started.
    pub started: bool,
    /// Whether CNI provides the network, so that the engine gave it none.
    pub cni: bool,
    /// The low-level runtime, which its containers must also use.
    pub runtime: String,
    /// The cgroup parent of the sandbox and its containers, in the engine's notation; empty for the
    /// engine's default.
    pub cgroup_parent: String,
    /// Read only from the engine's list, which has fewer fields than an inspect.
    pub provisional: bool,
}

impl Sandbox {
    /// Whether its pod uses the node's network.
    pub fn has_host_network(&self) -> bool {
        let namespaces = self.status.linux.as_ref();
        let namespaces = namespaces.and_then(|linux| linux.namespaces.as_ref());
        let options = namespaces.and_then(|namespaces| namespaces.options.as_ref());
        options.is_some_and(|options| options.network() == NamespaceMode::Node)
    }
}

/// A container in a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// The CRI status, except for the fields that depend on the images: `image` is the image that
    /// the container was created from, and `image_ref` is empty.
    pub status: ContainerStatus,
    /// The sandbox's id.
    pub sandbox_id: String,
    /// The Docker name.
    pub docker_name: String,
    /// The pid of the first process; 0 if not running.
    pub pid: i64,
    /// The engine's log file; empty if there is none, and before the start.
    pub engine_log: String,
    /// Whether the log is in CRI's format, not a symlink to the engine's.
    pub cri_log: bool,
    /// The cgroup v2 files to write at start.
    pub unified: BTreeMap<String, String>,
    /// The image mounts.
    pub image_mounts: ImageMountsByPath,
    /// The storage driver's directory of the writable layer; empty if the driver is not an overlay
    /// or the engine does not report it.
    pub upper_dir: String,
    /// Read only from the engine's list, which has fewer fields than an inspect.
    pub provisional: bool,
}

impl Record {
    /// Converts an inspect of a container that `author` created; `None` if it does not belong to a
    /// pod. Without a trusted name label, the metadata comes from the Docker name, or from `known`
    /// if it has the container, as that may have been renamed.
    pub fn from_inspect(
        inspect: ContainerInspectResponse,
        author: Author<'_>,
        known: &Snapshot,
    ) -> Option<Self> {
        let id = inspect.id.as_deref()?;
        match kind(inspect.config.as_ref()?.labels.as_ref()?)? {
            labels::TYPE_SANDBOX => {
                let known = known.sandbox(id).ok();
                let metadata = known.and_then(|sandbox| sandbox.status.metadata.clone());
                sandbox::from_inspect(inspect, author, metadata)
                    .map(|sandbox| Self::Sandbox(Arc::new(sandbox)))
            }
            _ => {
                let known = known.container(id).ok();
                let metadata = known.and_then(|container| container.status.metadata.clone());
                container::from_inspect(inspect, author, metadata)
                    .map(|container| Self::Container(Arc::new(container)))
            }
        }
    }

    /// Converts an entry of the engine's list, which does not show who created the container;
    /// `None` if it does not belong to a pod.
    pub fn from_summary(summary: ContainerSummary) -> Option<Self> {
        match kind(summary.labels.as_ref()?)? {
            labels::TYPE_SANDBOX => {
                sandbox::from_summary(summary).map(|sandbox| Self::Sandbox(Arc::new(sandbox)))
            }
            _ => container::from_summary(summary)
                .map(|container| Self::Container(Arc::new(container))),
        }
    }
}

fn kind(labels: &HashMap<String, String>) -> Option<&'static str> {
    match labels.get(labels::TYPE)?.as_str() {
        labels::TYPE_SANDBOX => Some(labels::TYPE_SANDBOX),
        labels::TYPE_CONTAINER => Some(labels::TYPE_CONTAINER),
        _ => None,
    }
}

impl Sandbox {
    /// Whether there is a process to stop, even if the sandbox is not ready.
    pub fn runs(&self) -> bool {
        self.pid != 0 || self.status.state() == PodSandboxState::SandboxReady
    }

    /// The sandbox's id.
    pub fn id(&self) -> &str {
        &self.status.id
    }

    /// The pod's name.
    pub fn pod(&self) -> &str {
        self.status.metadata.as_ref().map_or("", |m| &m.name)
    }

    /// The pod's namespace.
    pub fn namespace(&self) -> &str {
        self.status.metadata.as_ref().map_or("", |m| &m.namespace)
    }

    /// The pod's UID.
    pub fn uid(&self) -> &str {
        self.status.metadata.as_ref().map_or("", |m| &m.uid)
    }
}

impl Container {
    /// The container's id.
    pub fn id(&self) -> &str {
        &self.status.id
    }

    /// The container's name in its pod.
    pub fn name(&self) -> &str {
        self.status.metadata.as_ref().map_or("", |m| &m.name)
    }
}
