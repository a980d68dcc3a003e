//! What the runtime has of a pod: the pod cache holds these.

use std::collections::BTreeMap;

use cri_proto::runtime::v1;

use super::labels;
use crate::pod::identity::PodUid;

/// State of a container, as CRI names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Created and not started.
    Created,
    /// Running.
    Running,
    /// Ran and ended.
    Exited,
    /// The runtime cannot tell.
    Unknown,
}

impl From<v1::ContainerState> for ContainerState {
    fn from(state: v1::ContainerState) -> Self {
        match state {
            v1::ContainerState::ContainerCreated => Self::Created,
            v1::ContainerState::ContainerRunning => Self::Running,
            v1::ContainerState::ContainerExited => Self::Exited,
            v1::ContainerState::ContainerUnknown => Self::Unknown,
        }
    }
}

/// One container of a pod. Times are nanoseconds since the epoch by the
/// runtime's clock, zero when it has not happened.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStatus {
    /// Id in the runtime.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// Sandbox that it was created in; empty when the runtime does not say.
    pub sandbox_id: String,
    /// State when it was read.
    pub state: ContainerState,
    /// When it was created.
    pub created_at: i64,
    /// When it was started.
    pub started_at: i64,
    /// When it ended.
    pub finished_at: i64,
    /// Meaningful when it ended.
    pub exit_code: i32,
    /// The image as the runtime names it to people.
    pub image: String,
    /// What the image resolved to.
    pub image_ref: String,
    /// Hash of the spec that it was made from; `None` when this cannot be told.
    pub hash: Option<u64>,
    /// How often it was restarted before.
    pub restart_count: u32,
    /// Why it is in this state, one word.
    pub reason: String,
    /// Details for people; the termination message once it ended.
    pub message: String,
}

/// One sandbox of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxStatus {
    /// Id in the runtime.
    pub id: String,
    /// How many sandboxes the pod had before.
    pub attempt: u32,
    /// Whether it is ready.
    pub ready: bool,
    /// Nanoseconds since the epoch by the runtime's clock.
    pub created_at: i64,
    /// Whether it uses the node's network.
    pub host_network: bool,
    /// Its addresses, the primary first; empty on the node's network.
    pub ips: Vec<String>,
}

/// Everything that the runtime has of one pod. The default is a pod that the
/// runtime does not know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// Sandboxes, the newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// Containers, the newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodStatus {
    /// The newest container of a name.
    pub fn container(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Addresses of the newest sandbox, if it is ready.
    pub fn ips(&self) -> &[String] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    /// Whether anything of the pod may still run.
    pub fn is_running(&self) -> bool {
        self.sandboxes.iter().any(|s| s.ready)
            || self.containers.iter().any(ContainerStatus::may_run)
    }

    /// Sorts the newest first, and by id where the runtime's clock is too coarse.
    pub fn sort(&mut self) {
        self.sandboxes.sort_by(|a, b| {
            (b.created_at, b.attempt, &b.id).cmp(&(a.created_at, a.attempt, &a.id))
        });
        self.containers.sort_by(|a, b| {
            (b.created_at, b.restart_count, &b.id).cmp(&(a.created_at, a.restart_count, &a.id))
        });
    }
}

impl ContainerStatus {
    /// Whether it runs, or may.
    pub fn may_run(&self) -> bool {
        matches!(
            self.state,
            ContainerState::Running | ContainerState::Unknown
        )
    }

    /// Whether it ended by itself with exit code 0.
    pub fn succeeded(&self) -> bool {
        self.state == ContainerState::Exited && self.exit_code == 0
    }

    /// From what the runtime reports, without the termination message.
    pub fn from_cri(status: v1::ContainerStatus, sandbox_id: &str) -> Self {
        let state = status.state().into();
        let hash = status
            .annotations
            .get(labels::CONTAINER_HASH)
            .and_then(|hash| u64::from_str_radix(hash, 16).ok());
        let restart_count = status
            .annotations
            .get(labels::CONTAINER_RESTART_COUNT)
            .and_then(|count| count.parse().ok())
            .unwrap_or_default();
        let metadata = status.metadata.unwrap_or_default();
        let image = status.image.unwrap_or_default();
        Self {
            id: status.id,
            name: status
                .labels
                .get(labels::CONTAINER_NAME)
                .cloned()
                .unwrap_or(metadata.name),
            sandbox_id: sandbox_id.to_owned(),
            state,
            created_at: status.created_at,
            started_at: status.started_at,
            finished_at: status.finished_at,
            exit_code: status.exit_code,
            image: if image.user_specified_image.is_empty() {
                image.image
            } else {
                image.user_specified_image
            },
            image_ref: status.image_ref,
            hash,
            restart_count,
            reason: status.reason,
            message: status.message,
        }
    }
}

impl From<v1::PodSandboxStatus> for SandboxStatus {
    fn from(status: v1::PodSandboxStatus) -> Self {
        let ready = status.state() == v1::PodSandboxState::SandboxReady;
        let host_network = status
            .linux
            .and_then(|linux| linux.namespaces)
            .and_then(|namespaces| namespaces.options)
            .is_some_and(|options| options.network() == v1::NamespaceMode::Node);
        let network = status.network.unwrap_or_default();
        let ips = std::iter::once(network.ip)
            .chain(network.additional_ips.into_iter().map(|ip| ip.ip))
            .filter(|ip| ip.parse::<std::net::IpAddr>().is_ok())
            .collect();
        Self {
            id: status.id,
            attempt: status.metadata.map_or(0, |m| m.attempt),
            ready,
            created_at: status.created_at,
            host_network,
            ips,
        }
    }
}

/// UID of the pod that labels name.
pub fn uid_of(labels: &BTreeMap<String, String>) -> Option<PodUid> {
    labels
        .get(labels::POD_UID)
        .filter(|uid| !uid.is_empty())
        .map(|uid| PodUid::from(uid.as_str()))
}
