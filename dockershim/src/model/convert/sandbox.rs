//! Conversion of the engine's sandboxes to CRI's types.

use bollard::models::{
    ContainerInspectResponse, ContainerState, ContainerSummary, ContainerSummaryStateEnum,
    NetworkSettings,
};
use cri_proto::runtime::v1::{
    LinuxPodSandboxStatus, Namespace, NamespaceMode, PodIp, PodSandbox, PodSandboxMetadata,
    PodSandboxNetworkStatus, PodSandboxState, PodSandboxStatus,
};

use super::container::nanoseconds;
use crate::{
    labels::{self, Author, Labels},
    model::Sandbox,
    naming,
    security::namespace_options,
};

/// The engine's network mode for a CNI sandbox: only a loopback interface.
pub const NO_NETWORK: &str = "none";

/// Converts an inspect of a sandbox that `author` created; `None` if its name is not a sandbox's. A
/// `known` sandbox keeps its metadata even if a user renames it.
pub fn from_inspect(
    inspect: ContainerInspectResponse,
    author: Author<'_>,
    known: Option<PodSandboxMetadata>,
) -> Option<Sandbox> {
    let docker_labels = inspect.config?.labels?;
    let read = Labels::new(&docker_labels, author);
    let metadata = match (read.name(), known) {
        (Some(name), _) => naming::parse_sandbox_name(name)?,
        (None, Some(known)) => known,
        (None, None) => naming::parse_sandbox_name(inspect.name.as_deref()?)?,
    };
    let (labels, annotations) = read.of_pod();
    let host = inspect.host_config.unwrap_or_default();
    let options = namespace_options(&host);
    let cni = host.network_mode.as_deref() == Some(NO_NETWORK);
    let state = inspect.state.unwrap_or_default();
    let ready = state.running.unwrap_or_default() && !was_started_again(&state);
    Some(Sandbox {
        status: PodSandboxStatus {
            id: inspect.id?,
            metadata: Some(metadata),
            state: ready_state(ready).into(),
            created_at: nanoseconds(inspect.created.as_deref()).unwrap_or_default(),
            network: Some(network_status(options.network(), inspect.network_settings)),
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace {
                    options: Some(options),
                }),
            }),
            labels,
            annotations,
            runtime_handler: read.own(labels::RUNTIME_HANDLER).into(),
        },
        docker_name: inspect.name.unwrap_or_default(),
        pid: state.pid.unwrap_or_default(),
        started: nanoseconds(state.started_at.as_deref()).is_some(),
        cni,
        runtime: host.runtime.unwrap_or_default(),
        cgroup_parent: host.cgroup_parent.unwrap_or_default(),
        provisional: false,
    })
}

/// Converts an entry of the engine's list; `None` if its name is not a sandbox's.
pub fn from_summary(summary: ContainerSummary) -> Option<Sandbox> {
    let docker_name = summary.names?.into_iter().next()?;
    let metadata = naming::parse_sandbox_name(&docker_name)?;
    let docker_labels = summary.labels?;
    let (labels, annotations) = Labels::new(&docker_labels, Author::Other(None)).of_pod();
    let mode = summary.host_config.and_then(|host| host.network_mode);
    use ContainerSummaryStateEnum as Listed;
    let ready = matches!(
        summary.state,
        Some(Listed::RUNNING | Listed::PAUSED | Listed::RESTARTING)
    );
    Some(Sandbox {
        status: PodSandboxStatus {
            id: summary.id?,
            metadata: Some(metadata),
            state: ready_state(ready).into(),
            created_at: summary.created.unwrap_or_default() * 1_000_000_000,
            labels,
            annotations,
            ..Default::default()
        },
        docker_name,
        pid: 0,
        started: summary.state != Some(Listed::CREATED),
        cni: mode.as_deref() == Some(NO_NETWORK),
        runtime: String::new(),
        cgroup_parent: String::new(),
        provisional: true,
    })
}

/// Whether a running sandbox has exited before. Its namespaces were lost then, including the
/// network namespace that its containers share.
fn was_started_again(state: &ContainerState) -> bool {
    let started = nanoseconds(state.started_at.as_deref());
    let ended = nanoseconds(state.finished_at.as_deref());
    // A running sandbox with an end after its start comes from an engine bug.
    ended.is_some() && ended <= started
}

fn ready_state(ready: bool) -> PodSandboxState {
    if ready {
        PodSandboxState::SandboxReady
    } else {
        PodSandboxState::SandboxNotready
    }
}

/// A sandbox's entry in `ListPodSandbox`.
pub fn list_item(sandbox: &Sandbox) -> PodSandbox {
    let status = &sandbox.status;
    PodSandbox {
        id: status.id.clone(),
        metadata: status.metadata.clone(),
        state: status.state,
        created_at: status.created_at,
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
        runtime_handler: status.runtime_handler.clone(),
    }
}

/// The sandbox's addresses, IPv4 first. Empty with the host network: the addresses are the node's,
/// which the kubelet knows.
fn network_status(
    mode: NamespaceMode,
    settings: Option<NetworkSettings>,
) -> PodSandboxNetworkStatus {
    if mode == NamespaceMode::Node {
        return PodSandboxNetworkStatus::default();
    }
    let networks = settings.and_then(|s| s.networks).unwrap_or_default();
    let given = |text: &Option<String>| text.clone().filter(|ip| !ip.is_empty());
    let v4 = networks.values().filter_map(|n| given(&n.ip_address));
    let v6 = networks
        .values()
        .filter_map(|n| given(&n.global_ipv6_address));
    let mut ips = v4.chain(v6);
    PodSandboxNetworkStatus {
        ip: ips.next().unwrap_or_default(),
        additional_ips: ips.map(|ip| PodIp { ip }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_that_ended_before_it_was_started_last_was_started_again() {
        const ZERO: &str = "0001-01-01T00:00:00Z";
        let at = |second: u32| format!("2026-01-01T00:00:0{second}Z");
        for (started, finished, again) in [
            (at(1), ZERO.to_owned(), false),
            (at(3), at(2), true),
            (at(2), at(2), true),
            // It never exited; the engine wrongly recorded an exit.
            (at(1), at(2), false),
        ] {
            let state = ContainerState {
                started_at: Some(started),
                finished_at: Some(finished),
                ..Default::default()
            };
            assert_eq!(was_started_again(&state), again, "{state:?}");
        }
        assert!(!was_started_again(&ContainerState::default()));
    }
}
