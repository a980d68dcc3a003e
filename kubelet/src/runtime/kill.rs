//! Stops containers and whole pods.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, PodSpec};
use tokio::time::Instant;
use tracing::{info, warn};

use super::{
    RuntimeManager,
    cri::CriError,
    hooks, labels,
    pod_status::{ContainerStatus, PodStatus},
};
use crate::pod::identity;

/// Allowed where the spec names no grace period.
const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(30);
/// Every container gets this long, whatever is left of its grace period.
const MINIMUM_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// Why a pod may still run.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A container could not be stopped.
    #[error("cannot stop container {name:?}: {source}")]
    Container {
        /// Its name in the pod.
        name: String,
        /// Why not.
        source: CriError,
    },
    /// A sandbox could not be stopped.
    #[error("cannot stop the pod's sandbox: {0}")]
    Sandbox(#[source] CriError),
}

/// What the end of a container depends on.
struct Ending {
    pre_stop: Option<LifecycleHandler>,
    grace: Duration,
}

/// How long the pod may take to end.
pub fn grace_period(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    pod.metadata
        .deletion_grace_period_seconds
        .or_else(|| spec?.termination_grace_period_seconds)
        .map_or(DEFAULT_GRACE_PERIOD, seconds)
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

impl RuntimeManager {
    /// Stops every container of the pod, all at the same time, each within its
    /// grace period or `grace_override`, then its sandboxes. Without a spec,
    /// what containers were made with says how to stop them.
    ///
    /// # Errors
    /// Something may still run; the rest was stopped nonetheless.
    pub async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        status: &PodStatus,
        grace_override: Option<Duration>,
    ) -> Result<(), KillError> {
        let running = status.containers.iter().filter(|c| c.may_run());
        let ip = status.ips().first().map(String::as_str);
        let kills = running.map(|container| async move {
            self.kill_container(pod, container, ip, grace_override, "the pod ends")
                .await
        });
        let mut result: Result<(), KillError> = join_all(kills).await.into_iter().collect();
        for sandbox in &status.sandboxes {
            let stopped = self.cri.stop_pod_sandbox(&sandbox.id).await;
            if sandbox.ready && stopped.is_ok() {
                info!(
                    pod = pod.map(identity::full_name), sandbox_id = %sandbox.id,
                    "stopped sandbox"
                );
            }
            result = result.and(stopped.map_err(KillError::Sandbox));
        }
        result
    }

    /// Stops one container: runs its `preStop` hook, then stops it within what
    /// that left of the grace period.
    ///
    /// # Errors
    /// It may still run.
    pub(super) async fn kill_container(
        &self,
        pod: Option<&Pod>,
        status: &ContainerStatus,
        ip: Option<&str>,
        grace_override: Option<Duration>,
        why: &str,
    ) -> Result<(), KillError> {
        let failed = |source| KillError::Container {
            name: status.name.clone(),
            source,
        };
        let spec = pod
            .and_then(|pod| pod.spec.as_ref())
            .and_then(|spec| container_spec(spec, &status.name));
        let ending = match (pod, spec) {
            (Some(pod), Some(spec)) => Ending {
                pre_stop: spec
                    .lifecycle
                    .as_ref()
                    .and_then(|lifecycle| lifecycle.pre_stop.clone()),
                grace: grace_period(pod),
            },
            _ => match self.restore(&status.id).await {
                Ok(ending) => ending,
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => return Err(failed(error)),
            },
        };
        let mut grace = grace_override.unwrap_or(ending.grace);
        info!(
            pod = pod.map(identity::full_name), container = %status.name,
            container_id = %status.id, grace_seconds = grace.as_secs(), why,
            "stopping container"
        );
        if let Some(hook) = &ending.pre_stop
            && !grace.is_zero()
        {
            let begun = Instant::now();
            let run = hooks::run(&self.cri, &status.id, spec, ip, hook, grace);
            match tokio::time::timeout(grace, run).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => warn!(
                    container = %status.name, container_id = %status.id, %error,
                    "the preStop hook failed"
                ),
                Err(_) => warn!(
                    container = %status.name, container_id = %status.id,
                    "the preStop hook took the whole grace period"
                ),
            }
            grace = grace.saturating_sub(begun.elapsed());
        }
        self.cri
            .stop_container(&status.id, grace.max(MINIMUM_GRACE_PERIOD))
            .await
            .map_err(failed)
    }

    /// What the annotations of a container say of its end.
    async fn restore(&self, id: &str) -> Result<Ending, CriError> {
        let status = self.cri.container_status(id).await?;
        let grace = [
            labels::POD_DELETION_GRACE_PERIOD,
            labels::POD_TERMINATION_GRACE_PERIOD,
        ]
        .into_iter()
        .find_map(|name| status.annotations.get(name)?.parse().ok())
        .map_or(DEFAULT_GRACE_PERIOD, seconds);
        let pre_stop = status
            .annotations
            .get(labels::CONTAINER_PRE_STOP_HANDLER)
            .and_then(|handler| serde_json::from_str(handler).ok());
        Ok(Ending { pre_stop, grace })
    }
}

/// The spec of a container of the pod, init containers included.
pub(super) fn container_spec<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a Container> {
    spec.init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .find(|container| container.name == name)
}
