//! Stops containers and pods.

use std::{borrow::Cow, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::join_all};
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, PodSpec};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::{
    CriClient, CriError, labels,
    pod_status::{ContainerStatus, PodStatus},
};
use kubelet_pod_spec::ephemeral::as_container;
use tracing::{info, warn};

use super::{
    RuntimeManager,
    actions::KillReason,
    hooks::{self, HookMetrics},
    termination_order::TerminationOrder,
    terminations::HookOutcome,
};

/// The minimum time that a container gets to stop, even after its grace period, and the grace
/// period if none is specified.
const MINIMUM_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// Why a pod could not be killed.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A container could not be stopped.
    #[error("cannot stop container {name:?}: {source}")]
    Container {
        /// Name in the pod.
        name: String,
        /// The error.
        source: CriError,
    },
    /// A sandbox could not be stopped.
    #[error("cannot stop the pod's sandbox: {0}")]
    Sandbox(#[source] CriError),
}

/// The hook and grace period of a container.
struct TerminationSettings {
    pre_stop: Option<LifecycleHandler>,
    grace: Duration,
}

/// How a container is stopped.
#[derive(Clone, Copy)]
pub(super) struct KillOptions<'a> {
    /// The pod; `None` if only the runtime knows it.
    pub(super) pod: Option<&'a Pod>,
    /// IP address of the pod.
    pub(super) ip: Option<&'a str>,
    /// The cause, for the grace period.
    pub(super) reason: KillReason,
    /// Message of the event; empty when the whole pod is killed.
    pub(super) message: &'a str,
    /// Replaces the grace period of the container.
    pub(super) grace_override: Option<Duration>,
    /// The termination order of the pod's containers.
    pub(super) order: Option<&'a TerminationOrder>,
}

impl<'a> KillOptions<'a> {
    /// Stops a container within its own grace period.
    pub(super) const fn new(pod: Option<&'a Pod>, ip: Option<&'a str>, message: &'a str) -> Self {
        Self {
            pod,
            ip,
            reason: KillReason::Other,
            message,
            grace_override: None,
            order: None,
        }
    }
}

/// The grace period of a pod.
pub fn grace_period(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    pod.metadata
        .deletion_grace_period_seconds
        .or_else(|| spec?.termination_grace_period_seconds)
        .map_or(MINIMUM_GRACE_PERIOD, seconds)
}

/// The grace period of a container.
fn container_grace_period(pod: &Pod, container: &Container, reason: KillReason) -> Duration {
    let probe = match reason {
        KillReason::LivenessProbe => container.liveness_probe.as_ref(),
        KillReason::StartupProbe => container.startup_probe.as_ref(),
        KillReason::Other => None,
    };
    // The grace period of the deletion applies to all containers.
    probe
        .filter(|_| pod.metadata.deletion_grace_period_seconds.is_none())
        .and_then(|probe| probe.termination_grace_period_seconds)
        .map_or_else(|| grace_period(pod), seconds)
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

impl RuntimeManager {
    /// Stops all containers of the pod in parallel, each within its grace period or
    /// `grace_override`, and sidecars after the containers that they serve. The sandboxes are
    /// stopped last. Without a spec, hooks and grace periods are taken from the containers'
    /// annotations.
    ///
    /// # Errors
    /// A container or sandbox may still be running. The other containers were stopped nonetheless;
    /// the sandboxes, too, unless a container has time left.
    pub async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        status: &PodStatus,
        grace_override: Option<Duration>,
    ) -> Result<(), KillError> {
        let running = || status.containers.iter().filter(|c| c.may_run());
        let order = pod
            .and_then(|pod| pod.spec.as_ref())
            .and_then(|spec| TerminationOrder::new(spec, running().map(|c| c.name.as_str())));
        let ip = status.ips().first().map(String::as_str);
        let killing = KillOptions {
            grace_override,
            order: order.as_ref(),
            ..KillOptions::new(pod, ip, "")
        };
        let kills = running().map(|container| self.kill_container(container, killing));
        let mut result: Result<(), KillError> = join_all(kills).await.into_iter().collect();
        // Stopping the sandbox would end the container before its grace period.
        let has_time = |c: &ContainerStatus| !self.terminations.left(&c.id).is_zero();
        if result.is_err() && running().any(has_time) {
            return result;
        }
        for sandbox in &status.sandboxes {
            let stopped = self.cri.stop_pod_sandbox(&sandbox.id).await;
            if sandbox.ready && stopped.is_ok() {
                info!(sandbox_id = %sandbox.id, "stopped sandbox");
            }
            result = result.and(stopped.map_err(KillError::Sandbox));
        }
        result
    }

    /// Stops a container: runs its `preStop` hook, waits for its turn in the termination order, and
    /// stops it within the rest of the grace period. A repeated call continues an earlier one: the
    /// hook runs once, and the grace period is not extended.
    ///
    /// # Errors
    /// The container may still be running.
    pub(super) async fn kill_container(
        &self,
        status: &ContainerStatus,
        killing: KillOptions<'_>,
    ) -> Result<(), KillError> {
        let KillOptions { pod, ip, .. } = killing;
        let failed = |source| KillError::Container {
            name: status.name.clone(),
            source,
        };
        let spec = pod
            .and_then(|pod| pod.spec.as_ref())
            .and_then(|spec| container_spec(spec, &status.name));
        let ending = match (pod, &spec) {
            (Some(pod), Some(spec)) => TerminationSettings {
                pre_stop: spec
                    .lifecycle
                    .as_ref()
                    .and_then(|lifecycle| lifecycle.pre_stop.clone()),
                grace: container_grace_period(pod, spec, killing.reason),
            },
            _ => match self.restore(&status.id).await {
                Ok(ending) => ending,
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error) => {
                    self.terminations.begin_with_unknown_grace(&status.id);
                    return Err(failed(error));
                }
            },
        };
        if let Some(pod) = pod {
            let subject = Subject::Container(pod, &status.name);
            match killing.message {
                "" => self.events.normal(
                    subject,
                    reason::KILLING,
                    format_args!("Stopping container {}", status.name),
                ),
                message => self.events.normal(subject, reason::KILLING, message),
            }
        }
        let grace = killing.grace_override.unwrap_or(ending.grace);
        self.terminations.begin(&status.id, grace);
        info!(
            container = %status.name,
            container_id = %status.id, grace_seconds = self.terminations.left(&status.id).as_secs(),
            why = killing.message, "stopping container"
        );
        if let Some(hook) = ending.pre_stop
            && !self.terminations.left(&status.id).is_zero()
        {
            let hook = PreStop {
                cri: self.cri.clone(),
                events: self.events.clone(),
                pod: pod.cloned(),
                container: spec.as_deref().cloned(),
                name: status.name.clone(),
                id: status.id.clone(),
                ip: ip.map(str::to_owned),
                hook,
                metrics: Arc::clone(&self.hooks),
            };
            let waited = self.terminations.hook(&status.id, hook.run().boxed()).await;
            if waited == HookOutcome::TimedOut {
                warn!(
                    container = %status.name, container_id = %status.id, "PreStopHook not completed in grace period"
                );
            }
        }
        if let Some(order) = killing.order {
            let left = self.terminations.left(&status.id);
            order.wait_for_turn(&status.name, left).await;
        }
        let grace = self.terminations.left(&status.id).max(MINIMUM_GRACE_PERIOD);
        let stopped = self.cri.stop_container(&status.id, grace).await;
        stopped.map_err(failed)?;
        self.terminations.finish(&status.id);
        if let Some(order) = killing.order {
            order.ended(&status.name);
        }
        Ok(())
    }

    /// The hook and grace period in the annotations of a container.
    async fn restore(&self, id: &str) -> Result<TerminationSettings, CriError> {
        let status = self.cri.container_status(id).await?;
        let grace = [
            labels::POD_DELETION_GRACE_PERIOD,
            labels::POD_TERMINATION_GRACE_PERIOD,
        ]
        .into_iter()
        .find_map(|name| status.annotations.get(name)?.parse().ok())
        .map_or(MINIMUM_GRACE_PERIOD, seconds);
        let pre_stop = status
            .annotations
            .get(labels::CONTAINER_PRE_STOP_HANDLER)
            .and_then(|handler| serde_json::from_str(handler).ok());
        Ok(TerminationSettings { pre_stop, grace })
    }
}

/// A `preStop` hook with everything it needs to run in its own task.
struct PreStop {
    cri: CriClient,
    events: EventRecorder,
    pod: Option<Pod>,
    container: Option<Container>,
    name: String,
    id: String,
    ip: Option<String>,
    hook: LifecycleHandler,
    metrics: Arc<HookMetrics>,
}

impl PreStop {
    /// Runs without a time limit: the hook is stopped when its container has ended.
    async fn run(self) {
        let (container, ip) = (self.container.as_ref(), self.ip.as_deref());
        let limit = Duration::ZERO;
        let run = hooks::run(
            &self.cri,
            &self.id,
            container,
            ip,
            &self.hook,
            limit,
            &self.metrics,
        );
        let pod = self.pod.as_ref();
        let error = match run.await {
            Ok(success) => {
                if let Some(pod) = pod {
                    success.record(&self.events, pod);
                }
                return;
            }
            Err(error) => error,
        };
        warn!(
            container = %self.name, container_id = %self.id, %error, "PreStopHook failed"
        );
        if let Some(pod) = pod {
            // The error may contain secrets.
            self.events.warning(
                Subject::Container(pod, &self.name),
                reason::FAILED_PRE_STOP_HOOK,
                "PreStopHook failed",
            );
        }
    }
}

/// The spec of an init, regular or ephemeral container.
fn container_spec<'a>(spec: &'a PodSpec, name: &str) -> Option<Cow<'a, Container>> {
    let mut containers = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers);
    let mut ephemeral = spec.ephemeral_containers.iter().flatten();
    containers
        .find(|container| container.name == name)
        .map(Cow::Borrowed)
        .or_else(|| {
            ephemeral
                .find(|container| container.name == name)
                .map(|container| Cow::Owned(as_container(container)))
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_grace_period_is_the_deletions_then_the_probes_then_the_pods() {
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": {},
            "spec": {"terminationGracePeriodSeconds": 30, "containers": [{
                "name": "c",
                "livenessProbe": {"terminationGracePeriodSeconds": 5},
                "startupProbe": {}
            }]}
        }))
        .unwrap();
        let of = |pod: &Pod, reason| {
            let container = &pod.spec.as_ref().unwrap().containers[0];
            container_grace_period(pod, container, reason).as_secs()
        };
        assert_eq!(of(&pod, KillReason::LivenessProbe), 5);
        assert_eq!(of(&pod, KillReason::StartupProbe), 30);
        assert_eq!(of(&pod, KillReason::Other), 30);
        pod.metadata.deletion_grace_period_seconds = Some(10);
        assert_eq!(of(&pod, KillReason::LivenessProbe), 10);
    }
}
