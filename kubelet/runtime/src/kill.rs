//! Stops containers and whole pods.

use std::{borrow::Cow, time::Duration};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, PodSpec};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_cri_client::{
    CriClient, CriError, labels,
    pod_status::{ContainerStatus, PodStatus},
};
use kubelet_pod_spec::{ephemeral::as_container, identity};
use tracing::{info, warn};

use super::{
    RuntimeManager, actions::KillReason, endings::Waited, hooks,
    termination_order::TerminationOrder,
};

/// Every container gets this long, whatever is left of its grace period, and where
/// nothing names one.
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

/// Why and how a container is stopped.
#[derive(Clone, Copy)]
pub(super) struct Killing<'a> {
    /// The pod; none for what only the runtime knows.
    pub(super) pod: Option<&'a Pod>,
    /// Address of the pod.
    pub(super) ip: Option<&'a str>,
    /// What its grace period depends on.
    pub(super) reason: KillReason,
    /// Why, for people; nothing where all of the pod ends.
    pub(super) message: &'a str,
    /// Instead of its grace period.
    pub(super) grace_override: Option<Duration>,
    /// Who it waits for.
    pub(super) order: Option<&'a TerminationOrder>,
}

impl<'a> Killing<'a> {
    /// To stop something of a pod within its grace period.
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

/// How long the pod may take to end.
pub fn grace_period(pod: &Pod) -> Duration {
    let spec = pod.spec.as_ref();
    pod.metadata
        .deletion_grace_period_seconds
        .or_else(|| spec?.termination_grace_period_seconds)
        .map_or(MINIMUM_GRACE_PERIOD, seconds)
}

/// How long a container of the pod may take to end.
fn container_grace_period(pod: &Pod, container: &Container, reason: KillReason) -> Duration {
    let probe = match reason {
        KillReason::LivenessProbe => container.liveness_probe.as_ref(),
        KillReason::StartupProbe => container.startup_probe.as_ref(),
        KillReason::Other => None,
    };
    // What the deletion of the pod allows holds for all of it.
    probe
        .filter(|_| pod.metadata.deletion_grace_period_seconds.is_none())
        .and_then(|probe| probe.termination_grace_period_seconds)
        .map_or_else(|| grace_period(pod), seconds)
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

impl RuntimeManager {
    /// Stops every container of the pod, all at the same time, each within its
    /// grace period or `grace_override`, but sidecars after what they serve; then
    /// its sandboxes. Without a spec, what containers were made with says how to
    /// stop them.
    ///
    /// # Errors
    /// Something may still run. The other containers were stopped nonetheless, and the sandboxes
    /// unless a container has time left.
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
        let killing = Killing {
            grace_override,
            order: order.as_ref(),
            ..Killing::new(pod, ip, "")
        };
        let kills = running().map(|container| self.kill_container(container, killing));
        let mut result: Result<(), KillError> = join_all(kills).await.into_iter().collect();
        // With its sandbox a container ends at once, whatever is left of its time.
        let has_time = |c: &ContainerStatus| !self.endings.left(&c.id).is_zero();
        if result.is_err() && running().any(has_time) {
            return result;
        }
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

    /// Stops one container: runs its `preStop` hook, waits for its turn, and then
    /// stops it within what that left of the grace period. Done again, it goes on where it
    /// was: the hook runs once, and no time is added.
    ///
    /// # Errors
    /// It may still run.
    pub(super) async fn kill_container(
        &self,
        status: &ContainerStatus,
        killing: Killing<'_>,
    ) -> Result<(), KillError> {
        let Killing { pod, ip, .. } = killing;
        let failed = |source| KillError::Container {
            name: status.name.clone(),
            source,
        };
        let spec = pod
            .and_then(|pod| pod.spec.as_ref())
            .and_then(|spec| container_spec(spec, &status.name));
        let ending = match (pod, &spec) {
            (Some(pod), Some(spec)) => Ending {
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
                    self.endings.begin_unread(&status.id);
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
        self.endings.begin(&status.id, grace);
        info!(
            pod = pod.map(identity::full_name), container = %status.name,
            container_id = %status.id, grace_seconds = self.endings.left(&status.id).as_secs(),
            why = killing.message, "stopping container"
        );
        if let Some(hook) = ending.pre_stop
            && !self.endings.left(&status.id).is_zero()
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
            };
            let waited = self.endings.hook(&status.id, hook.run()).await;
            if waited == Waited::InVain {
                warn!(
                    pod = pod.map(identity::full_name), container = %status.name,
                    container_id = %status.id, "PreStopHook not completed in grace period"
                );
            }
        }
        if let Some(order) = killing.order {
            let left = self.endings.left(&status.id);
            order.wait_for_turn(&status.name, left).await;
        }
        let grace = self.endings.left(&status.id).max(MINIMUM_GRACE_PERIOD);
        let stopped = self.cri.stop_container(&status.id, grace).await;
        stopped.map_err(failed)?;
        self.endings.finish(&status.id);
        if let Some(order) = killing.order {
            order.ended(&status.name);
        }
        Ok(())
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
        .map_or(MINIMUM_GRACE_PERIOD, seconds);
        let pre_stop = status
            .annotations
            .get(labels::CONTAINER_PRE_STOP_HANDLER)
            .and_then(|handler| serde_json::from_str(handler).ok());
        Ok(Ending { pre_stop, grace })
    }
}

/// A `preStop` hook, with all that it takes to run on its own.
struct PreStop {
    cri: CriClient,
    events: EventRecorder,
    pod: Option<Pod>,
    container: Option<Container>,
    name: String,
    id: String,
    ip: Option<String>,
    hook: LifecycleHandler,
}

impl PreStop {
    /// Runs to its end, however long that takes: it ends with its container.
    async fn run(self) {
        let (container, ip) = (self.container.as_ref(), self.ip.as_deref());
        let limit = Duration::ZERO;
        let run = hooks::run(&self.cri, &self.id, container, ip, &self.hook, limit);
        let Err(error) = run.await else {
            return;
        };
        let pod = self.pod.as_ref();
        warn!(
            pod = pod.map(identity::full_name), container = %self.name,
            container_id = %self.id, %error, "PreStopHook failed"
        );
        if let Some(pod) = pod {
            // What failed may be secret.
            self.events.warning(
                Subject::Container(pod, &self.name),
                reason::FAILED_PRE_STOP_HOOK,
                "PreStopHook failed",
            );
        }
    }
}

/// The spec of a container of the pod, of whatever kind.
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
