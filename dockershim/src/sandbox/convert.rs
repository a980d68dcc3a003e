//! The engine's sandboxes in CRI's terms.

use bollard::models::{ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum};
use cri_proto::runtime::v1::{
    LinuxPodSandboxStatus, Namespace, PodSandbox, PodSandboxState, PodSandboxStatus,
};

use crate::{
    container::convert::nanoseconds,
    labels,
    model::Sandbox,
    naming,
    network::{cni, docker},
    security::namespace_options,
};

/// A sandbox out of an inspect; `None` when its name is not one of ours.
pub fn from_inspect(inspect: ContainerInspectResponse) -> Option<Sandbox> {
    let metadata = naming::parse_sandbox_name(inspect.name.as_deref()?)?;
    let docker_labels = inspect.config?.labels?;
    let (labels, annotations) = labels::from_docker(&docker_labels);
    let host = inspect.host_config.unwrap_or_default();
    let options = namespace_options(&host);
    let cni = host.network_mode.as_deref() == Some(cni::ENGINE_NETWORK);
    let state = inspect.state.unwrap_or_default();
    let ready = state.running.unwrap_or_default();
    Some(Sandbox {
        status: PodSandboxStatus {
            id: inspect.id?,
            metadata: Some(metadata),
            state: ready_state(ready).into(),
            created_at: nanoseconds(inspect.created.as_deref()).unwrap_or_default(),
            network: Some(docker::status(options.network(), inspect.network_settings)),
            linux: Some(LinuxPodSandboxStatus {
                namespaces: Some(Namespace {
                    options: Some(options),
                }),
            }),
            labels,
            annotations,
            runtime_handler: docker_labels
                .get(labels::RUNTIME_HANDLER)
                .cloned()
                .unwrap_or_default(),
        },
        pid: state.pid.unwrap_or_default(),
        started: nanoseconds(state.started_at.as_deref()).is_some(),
        cni,
        runtime: host.runtime.unwrap_or_default(),
        cgroup_parent: host.cgroup_parent.unwrap_or_default(),
        provisional: false,
    })
}

/// A sandbox out of the engine's list; `None` when its name is not one of ours.
pub fn from_summary(summary: ContainerSummary) -> Option<Sandbox> {
    let metadata = naming::parse_sandbox_name(summary.names?.first()?)?;
    let docker_labels = summary.labels?;
    let (labels, annotations) = labels::from_docker(&docker_labels);
    let mode = summary.host_config.and_then(|host| host.network_mode);
    let ready = summary.state == Some(ContainerSummaryStateEnum::RUNNING);
    Some(Sandbox {
        status: PodSandboxStatus {
            id: summary.id?,
            metadata: Some(metadata),
            state: ready_state(ready).into(),
            created_at: summary.created.unwrap_or_default() * 1_000_000_000,
            labels,
            annotations,
            runtime_handler: docker_labels
                .get(labels::RUNTIME_HANDLER)
                .cloned()
                .unwrap_or_default(),
            ..Default::default()
        },
        pid: 0,
        started: summary.state != Some(ContainerSummaryStateEnum::CREATED),
        cni: mode.as_deref() == Some(cni::ENGINE_NETWORK),
        runtime: String::new(),
        cgroup_parent: String::new(),
        provisional: true,
    })
}

fn ready_state(ready: bool) -> PodSandboxState {
    if ready {
        PodSandboxState::SandboxReady
    } else {
        PodSandboxState::SandboxNotready
    }
}

/// The line of a list for a sandbox.
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
