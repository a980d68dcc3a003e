//! Records: what the engine told of one container, already in CRI's terms.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bollard::models::{ContainerInspectResponse, ContainerSummary};
use cri_proto::runtime::v1::{ContainerStatus, PodSandboxState, PodSandboxStatus};

use super::Snapshot;
use crate::{
    container::{self, image_mounts::ImageMountsByPath},
    labels::{self, Author},
    sandbox,
};

/// What the engine told of one of our Docker containers.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// It is a sandbox.
    Sandbox(Arc<Sandbox>),
    /// It is a container in one.
    Container(Arc<Container>),
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Sandbox {
    /// As CRI has it.
    pub status: PodSandboxStatus,
    /// Its Docker name.
    pub docker_name: String,
    /// Its first process; 0 when it does not run.
    pub pid: i64,
    /// Whether it was ever started.
    pub started: bool,
    /// Whether its network is CNI's: the engine gave it none.
    pub cni: bool,
    /// The low-level runtime that its containers must share.
    pub runtime: String,
    /// The cgroup that it and its containers are in, as the engine names it; empty for the
    /// engine's own.
    pub cgroup_parent: String,
    /// Known from the engine's list only, which says less than an inspect.
    pub provisional: bool,
}

/// A container in a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Container {
    /// As CRI has it, but for what depends on the images: `image` is what the
    /// container was created from, `image_ref` is empty.
    pub status: ContainerStatus,
    /// Its sandbox.
    pub sandbox_id: String,
    /// Its Docker name.
    pub docker_name: String,
    /// Its first process; 0 when it does not run.
    pub pid: i64,
    /// The file that the engine logs to; empty when it has none, and before the start.
    pub engine_log: String,
    /// Whether its log is in CRI's format, and not a link to the engine's.
    pub cri_log: bool,
    /// Files of its cgroup v2 that are to be written when it starts.
    pub unified: BTreeMap<String, String>,
    /// The images that it has mounted.
    pub image_mounts: ImageMountsByPath,
    /// Where the storage driver keeps what it writes; empty when the driver is no overlay
    /// or the engine does not say.
    pub upper_dir: String,
    /// Known from the engine's list only, which says less than an inspect.
    pub provisional: bool,
}

impl Record {
    /// Reads an inspect of what `author` made; `None` when it is no pod's. Where the author
    /// has not said what it is, its name does, but for those that are `known`: they may
    /// have been renamed.
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
                sandbox::convert::from_inspect(inspect, author, metadata)
                    .map(|sandbox| Self::Sandbox(Arc::new(sandbox)))
            }
            _ => {
                let known = known.container(id).ok();
                let metadata = known.and_then(|container| container.status.metadata.clone());
                container::convert::from_inspect(inspect, author, metadata)
                    .map(|container| Self::Container(Arc::new(container)))
            }
        }
    }

    /// Reads a line of the engine's list, which does not tell who made what; `None` when it
    /// is no pod's.
    pub fn from_summary(summary: ContainerSummary) -> Option<Self> {
        match kind(summary.labels.as_ref()?)? {
            labels::TYPE_SANDBOX => sandbox::convert::from_summary(summary)
                .map(|sandbox| Self::Sandbox(Arc::new(sandbox))),
            _ => container::convert::from_summary(summary)
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
    /// Whether there is a process to stop: also of one that is not ready.
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
