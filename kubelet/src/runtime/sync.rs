//! Brings one pod to what its spec asks for.

use std::{path::Path, time::Duration};

use cri_proto::runtime::v1::PodSandboxConfig;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use tracing::{info, warn};

use super::{
    KillError, RuntimeManager,
    actions::{self, PodActions},
    cri::CriError,
    dns::{self, DnsError},
    pod_state::PodState,
    pod_status::{PodStatus, SandboxStatus},
    sandbox_config::sandbox_config,
    start::Running,
};
use crate::{files, pod::identity, status::ips, volume::MountedVolumes};

/// Reason of containers that wait for their sandbox.
const CONTAINER_CREATING: &str = "ContainerCreating";

/// Why a pod could not be brought any further.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The pod has no spec.
    #[error("the pod has no spec")]
    NoSpec,
    /// What must not run on does.
    #[error(transparent)]
    Kill(#[from] KillError),
    /// What an earlier sandbox left is in the way.
    #[error("cannot remove what the last sandbox left: {0}")]
    Purge(#[source] CriError),
    /// The pod's name servers cannot be told.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// The sandbox could not be made.
    #[error("cannot create the pod's sandbox: {0}")]
    Sandbox(#[source] CriError),
}

/// What a sync did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Synced {
    /// Something was changed in the runtime.
    pub changed: bool,
    /// Some container could not be started, other than for a back-off.
    pub failed: bool,
    /// The shortest back-off of the containers that were not started.
    pub retry_after: Option<Duration>,
    /// Running containers were given other resources.
    pub resized: bool,
}

impl RuntimeManager {
    /// Does what [`actions::compute`] finds. A container that cannot be started
    /// holds up no other; why it waits is in `state`.
    ///
    /// # Errors
    /// What concerns the pod as a whole; see [`SyncError`].
    pub async fn sync_pod(
        &self,
        pod: &Pod,
        status: &PodStatus,
        state: &PodState,
        volumes: &MountedVolumes,
        pod_dir: &Path,
    ) -> Result<Synced, SyncError> {
        let spec = pod.spec.as_ref().ok_or(SyncError::NoSpec)?;
        let mut actions = actions::compute(pod, status);
        let resizes = self.plan_resize(pod, spec, status, &mut actions);
        let mut synced = Synced {
            changed: self.prune(pod, status).await,
            ..Synced::default()
        };
        if actions.is_empty() && resizes.is_empty() {
            return Ok(synced);
        }
        synced.changed |= self.kill_unwanted(pod, status, &actions).await?;

        let attempt = match (actions.create_sandbox, &actions.sandbox_id) {
            (Some(attempt), _) => attempt,
            (None, Some(_)) => status.sandboxes.first().map_or(0, |s| s.attempt),
            (None, None) => return Ok(synced),
        };
        if let Some(id) = actions.sandbox_id.as_ref().filter(|_| !resizes.is_empty()) {
            synced.resized = true;
            synced.failed |= !self.resize(pod, spec, id, resizes).await;
        }
        let dns = dns::dns_config(pod, &self.options).await?;
        let sandbox_config = sandbox_config(pod, spec, attempt, dns, &self.options);
        let created;
        let (sandbox_id, sandbox_ips) = match (&actions.create_sandbox, &actions.sandbox_id) {
            (None, Some(id)) => (id.as_str(), status.ips()),
            _ => {
                synced.changed = true;
                created = self
                    .create_sandbox(pod, spec, status, &sandbox_config)
                    .await
                    .inspect_err(|error| {
                        for container in all_containers(spec) {
                            let message = error.to_string();
                            state.set_waiting(&container.name, CONTAINER_CREATING, message);
                        }
                    })?;
                for container in all_containers(spec) {
                    state.clear_waiting(&container.name);
                }
                (created.id.as_str(), created.ips.as_slice())
            }
        };
        let sandbox_ips = ips::by_family(sandbox_ips, &self.options.node_ips);
        let host_ips: Vec<String> = self
            .options
            .node_ips
            .iter()
            .map(ToString::to_string)
            .collect();
        let running = Running {
            pod,
            spec,
            sandbox_id,
            sandbox_config: &sandbox_config,
            ips: if spec.host_network == Some(true) {
                &host_ips
            } else {
                &sandbox_ips
            },
            host_ips: &host_ips,
            volumes,
            pod_dir,
        };
        let init = spec.init_containers.as_deref().unwrap_or_default();
        let init = actions.start_init.and_then(|index| init.get(index));
        let regular = actions.start.iter().filter_map(|i| spec.containers.get(*i));
        for container in init.into_iter().chain(regular) {
            self.start(&running, container, status, state, &mut synced)
                .await;
        }
        Ok(synced)
    }

    /// Whether anything was to be killed.
    async fn kill_unwanted(
        &self,
        pod: &Pod,
        status: &PodStatus,
        actions: &PodActions,
    ) -> Result<bool, SyncError> {
        if actions.kill_pod {
            let anything = status.is_running();
            self.kill_pod(Some(pod), status, None).await?;
            return Ok(anything);
        }
        let ip = status.ips().first().map(String::as_str);
        for unwanted in &actions.kill {
            if let Some(container) = status.containers.iter().find(|c| c.id == unwanted.id) {
                self.kill_container(Some(pod), container, ip, None, &unwanted.message)
                    .await?;
            }
        }
        Ok(!actions.kill.is_empty())
    }

    async fn create_sandbox(
        &self,
        pod: &Pod,
        spec: &PodSpec,
        status: &PodStatus,
        config: &PodSandboxConfig,
    ) -> Result<SandboxStatus, SyncError> {
        let is_init = |name: &str| {
            spec.init_containers
                .iter()
                .flatten()
                .any(|c| c.name == name)
        };
        self.purge(pod, status, is_init)
            .await
            .map_err(SyncError::Purge)?;
        // The runtime writes logs below it.
        if let Err(error) = files::create_dir_all(Path::new(&config.log_directory)).await {
            warn!(path = config.log_directory, %error, "cannot create the pod's log directory");
        }
        let id = self
            .cri
            .run_pod_sandbox(config.clone())
            .await
            .map_err(SyncError::Sandbox)?;
        info!(
            pod = identity::full_name(pod), pod_uid = pod.metadata.uid, sandbox_id = %id,
            "started sandbox"
        );
        let status = self.cri.pod_sandbox_status(&id).await;
        status.map(SandboxStatus::from).map_err(SyncError::Sandbox)
    }

    async fn start(
        &self,
        running: &Running<'_>,
        container: &Container,
        status: &PodStatus,
        state: &PodState,
        synced: &mut Synced,
    ) {
        let started = self
            .start_container(running, container, status, state)
            .await;
        let Err(error) = started else {
            state.clear_waiting(&container.name);
            synced.changed = true;
            return;
        };
        match error.retry_after() {
            Some(retry) => {
                let sooner = synced.retry_after.map_or(retry, |other| other.min(retry));
                synced.retry_after = Some(sooner);
            }
            None => {
                synced.failed = true;
                // Something may have been created.
                synced.changed = true;
                warn!(
                    pod = identity::full_name(running.pod), pod_uid = running.pod.metadata.uid,
                    container = %container.name, reason = error.reason(), %error,
                    "cannot start container"
                );
            }
        }
        state.set_waiting(&container.name, error.reason(), error.to_string());
    }
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}
