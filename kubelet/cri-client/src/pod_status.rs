//! What the runtime has of a pod: the pod cache holds these.

use std::collections::BTreeMap;

use cri_proto::runtime::v1;
use k8s_openapi::api::core::v1::ResourceRequirements;
use kubelet_pod_spec::identity::PodUid;

use super::labels;

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
    /// What else there is to show of it.
    pub reported: Reported,
}

/// What a container was made for and how it runs, as far as the runtime tells.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reported {
    /// What it may use now.
    pub resources: Option<RuntimeResources>,
    /// As whom its first process was started.
    pub user: Option<v1::ContainerUser>,
    /// The signal that ends it, when it has one of its own.
    pub stop_signal: Option<String>,
    /// Paths in it at which mounts are read-only in depth.
    pub recursive_read_only: Vec<String>,
    /// Requests and limits that it was created for; `None` when another kubelet
    /// created it.
    pub made_for: Option<ResourceRequirements>,
}

/// What a container may use, where the runtime knows it: thousandths of a CPU,
/// and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeResources {
    /// Its share when CPU time is short.
    pub cpu_request: Option<i64>,
    /// Its share at most.
    pub cpu_limit: Option<i64>,
    /// Memory at most.
    pub memory_limit: Option<i64>,
}

impl RuntimeResources {
    /// `None` when the runtime says nothing.
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

/// Least share that the kernel knows.
const MIN_SHARES: i64 = 2;
/// Share of one CPU.
const SHARES_PER_CPU: i64 = 1024;

/// Rounded up: what was rounded down for the kernel is itself again.
const fn shares_to_millis(shares: i64) -> i64 {
    (shares.saturating_mul(1000)).saturating_add(SHARES_PER_CPU - 1) / SHARES_PER_CPU
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

    /// Whether the container was created in the newest sandbox.
    pub fn is_active(&self, container: &ContainerStatus) -> bool {
        let newest = self.sandboxes.first();
        newest.is_some_and(|s| container.sandbox_id.is_empty() || container.sandbox_id == s.id)
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

    /// From what the runtime reports, without the termination message.
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

/// A signal as the API names it; `None` for the runtime's default.
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

/// UID of the pod that labels name.
pub fn uid_of(labels: &BTreeMap<String, String>) -> Option<PodUid> {
    labels
        .get(labels::POD_UID)
        .and_then(|uid| PodUid::told(uid))
}

#[cfg(test)]
mod tests {
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
            let found = read(millis * SHARES_PER_CPU / 1000, millis * 100).unwrap();
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
