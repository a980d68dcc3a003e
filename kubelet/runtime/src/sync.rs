//! Syncs a pod with its spec.

mod sandbox;

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_api_client::events::{Subject, reason};
use kubelet_container_manager::cgroup::CgroupError;
use kubelet_cri_client::{
    CriError,
    pod_status::{ContainerState, PodStatus},
};
use kubelet_dra_manager::DraError;
use kubelet_pod_spec::{ephemeral::as_container, restart_rules::is_sidecar};
use kubelet_volume::MountedVolumes;
use tracing::warn;

use super::{
    KillError, RuntimeManager,
    actions::{self, ContainerToReset, PodActions},
    dns::DnsError,
    hostname::HostnameError,
    kill::KillOptions,
    metrics::ContainerType,
    pod_state::PodState,
    runtime_class::RuntimeClassError,
    start::PodStartContext,
    start_error::StartError,
    user_namespace::UserNamespaceError,
};

/// Waiting reason of containers without a sandbox.
const CONTAINER_CREATING: &str = "ContainerCreating";

/// Why the sync of a pod failed.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The pod has no spec.
    #[error("the pod has no spec")]
    NoSpec,
    /// A container or sandbox could not be stopped.
    #[error(transparent)]
    Kill(#[from] KillError),
    /// A container of an earlier run could not be removed.
    #[error("cannot remove containers of an earlier run: {0}")]
    Purge(#[source] CriError),
    /// The pod's runtime handler could not be determined.
    #[error(transparent)]
    RuntimeClass(#[from] RuntimeClassError),
    /// The pod's DNS configuration could not be determined.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// The pod has no valid hostname.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// The pod cannot have a cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The pod cannot have a user namespace.
    #[error(transparent)]
    UserNamespace(#[from] UserNamespaceError),
    /// The runtime did not report its features.
    #[error("cannot determine whether the runtime supports user namespaces: {0}")]
    Features(#[source] CriError),
    /// The devices of the pod's claims could not be prepared.
    #[error("prepare dynamic resources: {0}")]
    Claims(#[source] DraError),
    /// The sandbox could not be created.
    #[error("cannot create the pod's sandbox: {0}")]
    Sandbox(#[source] CriError),
}

/// The outcome of a sync.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PodSyncResult {
    /// The pod's state in the runtime changed, or may have.
    pub changed: bool,
    /// A start failed, other than by a back-off, or a resize failed.
    pub failed: bool,
    /// The shortest back-off of the containers that were not started.
    pub retry_after: Option<Duration>,
    /// A resize of running containers was attempted.
    pub resized: bool,
}

impl RuntimeManager {
    /// Executes the actions of [`actions::compute`], and resizes running containers. If an init
    /// container that is not a sidecar fails to start, the sync ends; other containers do not block
    /// each other. The reason why a container waits is in `state`. `reported_ips` are the IP
    /// addresses in the status of a pod on the host network.
    ///
    /// # Errors
    /// The pod as a whole could not be synced; see [`SyncError`].
    pub async fn sync_pod(
        &self,
        pod: &Pod,
        status: &PodStatus,
        state: &PodState,
        volumes: &MountedVolumes,
        pod_dir: &Path,
        reported_ips: &[String],
    ) -> Result<PodSyncResult, SyncError> {
        let spec = pod.spec.as_ref().ok_or(SyncError::NoSpec)?;
        let context = SyncContext {
            pod,
            spec,
            status,
            state,
            pod_dir,
        };
        let mut actions = actions::compute(pod, status, &self.probes);
        let resizes = self.plan_resize(pod, spec, status, &mut actions);
        let mut synced = PodSyncResult {
            changed: self.prune(pod, status).await,
            ..PodSyncResult::default()
        };
        if actions.is_empty() && resizes.is_empty() {
            return Ok(synced);
        }
        let is_new = actions.create_sandbox.is_some();
        if is_new && !status.sandboxes.is_empty() {
            self.events.normal(
                Subject::Pod(pod),
                reason::SANDBOX_CHANGED,
                "Pod sandbox changed, it will be killed and re-created.",
            );
        }
        synced.changed |= self.kill_unwanted(pod, status, &actions).await?;
        if !actions.reset.is_empty() {
            self.reset(pod, status, &actions.reset).await?;
            synced.changed = true;
            // The pod starts over, but no container event follows that would trigger its sync.
            synced.retry_after = Some(Duration::ZERO);
            return Ok(synced);
        }

        let attempt = match (actions.create_sandbox, &actions.sandbox_id) {
            (Some(attempt), _) => attempt,
            (None, Some(_)) => status.sandboxes.first().map_or(0, |s| s.attempt),
            (None, None) => return Ok(synced),
        };
        if let Some(id) = actions.sandbox_id.as_ref().filter(|_| !resizes.is_empty()) {
            synced.resized = true;
            synced.failed |= !self.resize(pod, spec, id, status, resizes).await;
        } else if let Some(id) = &actions.sandbox_id {
            let starts = !actions.start.is_empty() || !actions.start_init.is_empty();
            if starts && self.is_resized_while_ended(pod, spec, status) {
                self.fit_limits(pod, spec, id).await?;
            }
        }
        if is_new {
            self.metrics.pod(spec);
        }
        let sandbox = self
            .sandbox(context, &actions, attempt, &mut synced)
            .await?;
        let host_ips = self.host_ips.now();
        let host_ips: Vec<String> = host_ips.iter().map(ToString::to_string).collect();
        let pod_context = PodStartContext {
            pod,
            spec,
            status,
            state,
            sandbox_id: &sandbox.id,
            sandbox_config: &sandbox.config,
            ips: if spec.host_network == Some(true) {
                reported_ips
            } else {
                &sandbox.ips
            },
            host_ips: &host_ips,
            volumes,
            pod_dir,
            user_namespace: sandbox.user_namespace(),
            handler: &sandbox.handler,
        };
        self.start_containers(&pod_context, &actions, &mut synced)
            .await;
        Ok(synced)
    }

    /// Starts the containers that the actions name.
    async fn start_containers(
        &self,
        pod_context: &PodStartContext<'_>,
        actions: &PodActions,
        synced: &mut PodSyncResult,
    ) {
        let spec = pod_context.spec;
        let ephemeral = spec.ephemeral_containers.as_deref().unwrap_or_default();
        for container in chosen(&actions.start_ephemeral, ephemeral) {
            let target = container.target_container_name.as_deref();
            let target = target.filter(|target| !target.is_empty());
            let kind = ContainerType::Ephemeral;
            self.start(pod_context, kind, &as_container(container), target, synced)
                .await;
        }
        let init = spec.init_containers.as_deref().unwrap_or_default();
        for container in chosen(&actions.start_init, init) {
            let kind = ContainerType::Init;
            let started = self.start(pod_context, kind, container, None, synced).await;
            // The containers after a sidecar are in the plan only if it has started before, so they
            // do not wait for its restart.
            if !started && !is_sidecar(container) {
                return;
            }
        }
        for container in chosen(&actions.start, &spec.containers) {
            let kind = ContainerType::Regular;
            self.start(pod_context, kind, container, None, synced).await;
        }
    }

    /// Stops what the actions name. Returns whether there was anything to stop.
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
                let killing = KillOptions {
                    reason: unwanted.reason,
                    ..KillOptions::new(Some(pod), ip, &unwanted.message)
                };
                self.kill_container(container, killing).await?;
            }
        }
        Ok(!actions.kill.is_empty())
    }

    /// Removes the containers of a pod that starts over, but not their logs, which count the
    /// restarts.
    async fn reset(
        &self,
        pod: &Pod,
        status: &PodStatus,
        reset: &[ContainerToReset],
    ) -> Result<(), SyncError> {
        let ip = status.ips().first().map(String::as_str);
        for unwanted in reset {
            let run = status.containers.iter().find(|c| c.id == unwanted.id);
            if let Some(run) = run.filter(|_| unwanted.kill) {
                let killing = KillOptions {
                    grace_override: Some(Duration::ZERO),
                    ..KillOptions::new(Some(pod), ip, "killing")
                };
                self.kill_container(run, killing).await?;
            }
            self.cri
                .remove_container(&unwanted.id)
                .await
                .map_err(SyncError::Purge)?;
        }
        Ok(())
    }

    /// Starts a container. Returns whether it succeeded.
    async fn start(
        &self,
        pod_context: &PodStartContext<'_>,
        kind: ContainerType,
        container: &Container,
        target: Option<&str>,
        synced: &mut PodSyncResult,
    ) -> bool {
        let PodStartContext { pod, state, .. } = *pod_context;
        // Boxed, because this future is large and would be part of the caller's.
        let starting = self.start_container(pod_context, container, target);
        let started = Box::pin(starting).await;
        // A container in back-off does not count as a start.
        if started.as_ref().err().is_none_or(StartError::was_begun) {
            let failure = started.as_ref().err().map(StartError::reason);
            self.metrics.container(kind, failure);
            let failure = started.as_ref().err();
            self.metrics
                .image_volumes(pod_context.spec, container, failure);
        }
        let Err(error) = started else {
            state.started(&container.name);
            synced.changed = true;
            return true;
        };
        error.record(&self.events, pod, &container.name);
        match error.retry_after() {
            Some(retry) => {
                let sooner = synced.retry_after.map_or(retry, |other| other.min(retry));
                synced.retry_after = Some(sooner);
            }
            None => {
                synced.failed = true;
                // The container may have been created.
                synced.changed = true;
                warn!(
                    container = %container.name, reason = error.reason(), %error,
                    "cannot start container"
                );
            }
        }
        state.set_waiting(&container.name, error.reason(), error.to_string());
        false
    }
}

/// What the steps of one sync share.
#[derive(Clone, Copy)]
struct SyncContext<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    status: &'a PodStatus,
    state: &'a PodState,
    pod_dir: &'a Path,
}

impl SyncContext<'_> {
    /// Sets the waiting reason of all containers that are not running.
    fn wait_for_sandbox(&self, error: &SyncError) {
        for container in all_containers(self.spec) {
            let run = self.status.container(&container.name);
            if run.is_none_or(|run| run.state != ContainerState::Running) {
                self.state
                    .set_waiting(&container.name, CONTAINER_CREATING, error.to_string());
            }
        }
    }

    /// Removes the waiting reason of all containers.
    fn clear_waiting(&self) {
        for container in all_containers(self.spec) {
            self.state.clear_waiting(&container.name);
        }
    }
}

/// The containers with the given indexes.
fn chosen<'a, C>(indexes: &'a [usize], containers: &'a [C]) -> impl Iterator<Item = &'a C> {
    indexes.iter().filter_map(|index| containers.get(*index))
}

fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
}
