//! The state of a pod in the runtime, as the pod cache stores it.

use std::collections::BTreeMap;

use cri_proto::runtime::v1;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_pod_spec::{
    cpu::{MIN_SHARES, shares_to_millis},
    identity::PodUid,
};

use super::labels;

/// The CRI state of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, not started yet.
    Created,
    /// Running.
    Running,
    /// Exited.
    Exited,
    /// Unknown to the runtime.
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

/// One container of a pod. Times are nanoseconds since the epoch by the runtime's clock; zero if
/// the event has not happened.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerStatus {
    /// ID in the runtime.
    pub id: String,
    /// Name in the pod.
    pub name: String,
    /// ID of its sandbox; empty if the runtime does not report it.
    pub sandbox_id: String,
    /// State at the time of reading.
    pub state: ContainerState,
    /// Time of creation.
    pub created_at: i64,
    /// Time of start.
    pub started_at: i64,
    /// Time of exit.
    pub finished_at: i64,
    /// Exit code; meaningful after exit.
    pub exit_code: i32,
    /// Display name of the image.
    pub image: String,
    /// Resolved image reference.
    pub image_ref: String,
    /// Hash of the spec it was created from; `None` if unknown.
    pub hash: Option<u64>,
    /// Restart count.
    pub restart_count: u32,
    /// Reason for the state, one word.
    pub reason: String,
    /// Details for people; after exit, the termination message.
    pub message: String,
    /// Further reported values.
    pub reported: Reported,
}

/// Further values that the runtime reports of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// Resources in force.
    pub resources: Option<RuntimeResources>,
    /// User of the first process.
    pub user: Option<v1::ContainerUser>,
    /// Stop signal, if it has its own.
    pub stop_signal: Option<String>,
    /// Mount paths that are recursively read-only.
    pub recursive_read_only: Vec<String>,
    /// Requests and limits it was created with; `None` if another kubelet created it.
    pub made_for: Option<ResourceRequirements>,
}

/// Resources in force for a container, in millicores and bytes; `None` if not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeResources {
    /// CPU request.
    pub cpu_request: Option<i64>,
    /// CPU limit.
    pub cpu_limit: Option<i64>,
    /// Memory limit.
    pub memory_limit: Option<i64>,
}

impl RuntimeResources {
    /// `None` if the runtime reports nothing.
    fn from_cri(resources: &v1::LinuxContainerResources) -> Option<Self> {
        let positive = |amount: i64| (amount > 0).then_some(amount);
        let found = Self {
            cpu_limit: positive(resources.cpu_period)
                .and_then(|period| positive(resources.cpu_quota.saturating_mul(1000) / period)),
            cpu_request: (resources.cpu_shares >= MIN_SHARES)
                .then(|| shares_to_millis(resources.cpu_shares)),
            memory_limit: positive(resources.memory_limit_in_bytes),
        };
        (found != Self::default()).then_some(found)
    }
}

/// One sandbox of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxStatus {
    /// ID in the runtime.
    pub id: String,
    /// Number of earlier sandboxes of the pod.
    pub attempt: u32,
    /// Whether it is ready.
    pub ready: bool,
    /// Time of creation in nanoseconds since the epoch, by the runtime's clock.
    pub created_at: i64,
    /// Whether it uses the host network.
    pub host_network: bool,
    /// IP addresses, the primary first; empty on the host network.
    pub ips: Vec<String>,
}

/// Sandboxes and containers of one pod. The default is a pod that the runtime does not know.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodStatus {
    /// Sandboxes, the newest first.
    pub sandboxes: Vec<SandboxStatus>,
    /// Containers, the newest first.
    pub containers: Vec<ContainerStatus>,
}

impl PodStatus {
    /// The newest container with this name.
    pub fn container(&self, name: &str) -> Option<&ContainerStatus> {
        self.containers.iter().find(|c| c.name == name)
    }

    /// Whether the container was created in the newest sandbox.
    pub fn is_active(&self, container: &ContainerStatus) -> bool {
        let newest = self.sandboxes.first();
        newest.is_some_and(|s| container.sandbox_id.is_empty() || container.sandbox_id == s.id)
    }

    /// IP addresses of the newest sandbox, if it is ready.
    pub fn ips(&self) -> &[String] {
        match self.sandboxes.first() {
            Some(sandbox) if sandbox.ready => &sandbox.ips,
            _ => &[],
        }
    }

    /// Whether any container of the pod may still be running.
    pub fn is_running(&self) -> bool {
        self.sandboxes.iter().any(|s| s.ready)
            || self.containers.iter().any(ContainerStatus::may_run)
    }

    /// Sorts by time, newest first, and by ID if the times are equal.
    pub fn sort(&mut self) {
        self.sandboxes.sort_unstable_by(|a, b| {
            (b.created_at, b.attempt, &b.id).cmp(&(a.created_at, a.attempt, &a.id))
        });
        self.containers.sort_unstable_by(|a, b| {
            (b.created_at, b.restart_count, &b.id).cmp(&(a.created_at, a.restart_count, &a.id))
        });
    }
}

impl ContainerStatus {
    /// Whether it is running or may be.
    pub fn may_run(&self) -> bool {
        matches!(
            self.state,
            ContainerState::Running | ContainerState::Unknown
        )
    }

    /// Whether it exited with code 0.
    pub fn succeeded(&self) -> bool {
        self.state == ContainerState::Exited && self.exit_code == 0
    }

    /// A container that was just started, before the runtime reported anything about it.
    pub fn started(id: String, name: String) -> Self {
        Self {
            id,
            name,
            sandbox_id: String::new(),
            state: ContainerState::Running,
            created_at: 0,
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            image: String::new(),
            image_ref: String::new(),
            hash: None,
            restart_count: 0,
            reason: String::new(),
            message: String::new(),
            reported: Reported::default(),
        }
    }

    /// Converts the runtime's report, without the termination message.
    pub fn from_cri(status: v1::ContainerStatus, sandbox_id: &str) -> Self {
        let state = status.state().into();
        let hash = status
            .annotations
            .get(labels::CONTAINER_HASH)
            .and_then(|hash| u64::from_str_radix(hash, 16).ok());
        let reported = Reported::from_cri(&status);
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
            reported,
        }
    }
}

impl Reported {
    fn from_cri(status: &v1::ContainerStatus) -> Self {
        let resources = status.resources.as_ref().and_then(|r| r.linux.as_ref());
        let made_for = status.annotations.get(labels::CONTAINER_RESOURCES);
        Self {
            resources: resources.and_then(RuntimeResources::from_cri),
            user: status.user.clone(),
            stop_signal: signal_name(status.stop_signal()),
            recursive_read_only: status
                .mounts
                .iter()
                .filter(|mount| mount.recursive_read_only)
                .map(|mount| mount.container_path.clone())
                .collect(),
            made_for: made_for.and_then(|json| serde_json::from_str(json).ok()),
        }
    }
}

/// The API name of a signal; `None` for the runtime's default.
fn signal_name(signal: v1::Signal) -> Option<String> {
    if signal == v1::Signal::RuntimeDefault {
        return None;
    }
    let name = signal.as_str_name().strip_prefix("SIGNAL_")?;
    Some(name.replace("PLUS", "+").replace("MINUS", "-"))
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

/// The pod UID in labels.
pub fn uid_of(labels: &BTreeMap<String, String>) -> Option<PodUid> {
    labels
        .get(labels::POD_UID)
        .and_then(|uid| PodUid::parse(uid))
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::cpu::shares;

    use super::*;

    #[test]
    fn what_the_kernel_has_reads_as_what_was_asked_for() {
        let read = |cpu_shares, cpu_quota| {
            RuntimeResources::from_cri(&v1::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_quota,
                cpu_shares,
                memory_limit_in_bytes: 0,
                ..Default::default()
            })
        };
        assert_eq!(read(0, 0), None);
        for millis in [100, 250, 333, 1500] {
            let found = read(shares(millis), millis * 100).unwrap();
            assert_eq!(found.cpu_request, Some(millis));
            assert_eq!(found.cpu_limit, Some(millis));
        }
    }

    #[test]
    fn signals_are_named_as_in_the_spec() {
        for (signal, name) in [
            (v1::Signal::RuntimeDefault, None),
            (v1::Signal::Sigusr1, Some("SIGUSR1")),
            (v1::Signal::Sigrtminplus3, Some("SIGRTMIN+3")),
        ] {
            assert_eq!(signal_name(signal).as_deref(), name);
        }
    }
}
