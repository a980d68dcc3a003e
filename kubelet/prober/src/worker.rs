//! The task of one probe.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus, Probe};
use kubelet_api_client::events::{Subject, reason};
use kubelet_host::clock;
use kubelet_pacing::backoff::jittered;
use kubelet_pod_spec::{phase::Phase, restart_rules};
use tokio::{
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tracing::{debug, info, warn};

use super::{
    manager::{Key, Shared},
    metrics::Probing,
    outcome::Outcome,
    probe::{self, Target, positive},
    results::{ProbeResult, ProbeType},
};

/// Asked where a pod has no address, as upstream: it is on the node's network.
const LOCALHOST: &str = "127.0.0.1";

/// The container that is probed, as its spec was when that began.
#[derive(Debug)]
pub(super) struct ProbedContainer {
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    /// It initialises its pod, and goes on running.
    pub(super) sidecar: bool,
}

/// Probes one container for one purpose until its pod is done.
pub(super) struct Worker {
    key: Key,
    probed: Arc<ProbedContainer>,
    probe: Probe,
    prompt: Arc<Notify>,
    shared: Arc<Shared>,
    /// The container that was found last.
    container_id: Option<String>,
    last: Option<ProbeResult>,
    /// How often in a row `last` was found.
    run: u32,
    /// There is nothing to find out before the container is another.
    on_hold: bool,
}

/// Whether a worker goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

impl Worker {
    pub(super) fn new(
        key: Key,
        probed: Arc<ProbedContainer>,
        probe: Probe,
        prompt: Arc<Notify>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            key,
            probed,
            probe,
            prompt,
            shared,
            container_id: None,
            last: None,
            run: 0,
            on_hold: false,
        }
    }

    /// Probes every period, and when it is prompted.
    pub(super) async fn run(mut self) {
        let period = positive(self.probe.period_seconds).unwrap_or(10);
        let period = Duration::from_secs(period.into());
        // A kubelet that begins finds many containers at once.
        if period > self.shared.begun.elapsed() {
            tokio::time::sleep((jittered(period) - period) * 2).await;
        }
        let mut ticks = interval_at(Instant::now() + period, period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        // What it takes to probe is in memory only while it is done.
        while Box::pin(self.look()).await == Next::Continue {
            loop {
                tokio::select! {
                    biased;
                    _ = ticks.tick() => break,
                    () = self.prompt.notified() => if self.is_awaited() {
                        ticks.reset();
                        break;
                    }
                }
            }
        }
    }

    /// The container's status, once it has an id.
    fn find<'a>(&self, status: &'a PodStatus) -> Option<(&'a ContainerStatus, &'a str)> {
        let regular = status.container_statuses.iter().flatten();
        let all = regular.chain(status.init_container_statuses.iter().flatten());
        all.filter(|status| status.name == self.key.container)
            .find_map(|status| Some((status, bare_id(status.container_id.as_deref()?)?)))
    }

    /// Whether the startup probe, if there is one, has succeeded.
    fn has_started(&self, status: &ContainerStatus, id: &str) -> bool {
        match self.shared.results.get(id, ProbeType::Startup) {
            Some(result) => result == ProbeResult::Success,
            None if self.probed.container.startup_probe.is_none() => true,
            // An earlier kubelet saw it start, or its pod is terminating and the result is unused;
            // otherwise it was not probed yet.
            None => {
                let startup = Key {
                    kind: ProbeType::Startup,
                    ..self.key.clone()
                };
                status.started == Some(true)
                    && (self.is_older(status) || !self.shared.has_worker(&startup))
            }
        }
    }

    /// Whether the container was started before this kubelet.
    fn is_older(&self, status: &ContainerStatus) -> bool {
        let running = status.state.as_ref().and_then(|s| s.running.as_ref());
        let started = running.and_then(|running| running.started_at.as_ref());
        started.is_some_and(|started| self.shared.is_older(started.0))
    }

    /// Whether the container runs, has started and was not found ready.
    fn is_awaited(&self) -> bool {
        let Some(status) = (self.shared.statuses)(&self.key.uid) else {
            return false;
        };
        self.find(&status).is_some_and(|(container, id)| {
            is_running(container)
                && self.has_started(container, id)
                && self.shared.results.get(id, self.key.kind) != Some(ProbeResult::Success)
        })
    }

    /// Probes once, if it is time.
    async fn look(&mut self) -> Next {
        let Some(status) = (self.shared.statuses)(&self.key.uid) else {
            return Next::Continue;
        };
        if Phase::parse(status.phase.as_deref()).is_terminal() {
            return Next::Stop;
        }
        let Some((container, id)) = self.find(&status) else {
            return Next::Continue;
        };
        let state = container.state.as_ref();
        let ended = state.and_then(|state| state.terminated.as_ref());
        let stays_ended = ended.is_some_and(|ended| !self.is_restarted(ended.exit_code));
        if self.container_id.as_deref() != Some(id) {
            // The probes of what has ended for good begin with every look at its
            // pod; they are not to ask for another.
            if stays_ended {
                return Next::Stop;
            }
            self.adopt(container, id).await;
        }
        if self.on_hold {
            return Next::Continue;
        }
        let Some(running) = state.and_then(|state| state.running.as_ref()) else {
            self.set(id, ProbeResult::Failure, "the container is not running")
                .await;
            return if stays_ended {
                Next::Stop
            } else {
                Next::Continue
            };
        };
        let delay = self.probe.initial_delay_seconds.unwrap_or_default();
        if let Some(started) = &running.started_at
            && clock::now().duration_since(started.0).as_secs() < i64::from(delay)
        {
            return Next::Continue;
        }
        // Each waits for the other: the startup probe until there is something
        // to start, the rest until it has.
        if self.has_started(container, id) == (self.key.kind == ProbeType::Startup) {
            return Next::Continue;
        }
        let ip = status.pod_ip.as_deref().unwrap_or(LOCALHOST);
        self.probe(id, ip).await;
        Next::Continue
    }

    /// There is another container than before: what was found before is void.
    async fn adopt(&mut self, container: &ContainerStatus, id: &str) {
        if let Some(old) = self.container_id.replace(id.to_owned()) {
            self.shared.results.remove(&old, self.key.kind);
        }
        self.on_hold = false;
        if !self.is_older(container) {
            let initial = match self.key.kind {
                ProbeType::Liveness => ProbeResult::Success,
                ProbeType::Readiness => ProbeResult::Failure,
                ProbeType::Startup => ProbeResult::Unknown,
            };
            self.set(id, initial, "the container has not been probed yet")
                .await;
        } else if self.probed.sidecar
            && self.key.kind == ProbeType::Startup
            && container.started == Some(true)
        {
            // What tells that the pod is initialised must not be forgotten.
            let why = "the container started before the kubelet";
            self.set(id, ProbeResult::Success, why).await;
        }
    }

    async fn probe(&mut self, id: &str, ip: &str) {
        let target = Target {
            cri: &self.shared.cri,
            container: &self.probed.container,
            container_id: id,
            ip,
        };
        let begun = Instant::now();
        let found = probe::probe(target, &self.probe).await;
        let took = begun.elapsed();
        let (result, output) = match found {
            Ok(Outcome::Success) => (ProbeResult::Success, String::new()),
            Ok(Outcome::Warning(output)) => {
                warn!(
                    container = self.key.container, container_id = id,
                    probe = %self.key.kind, output, "probe succeeded with a warning"
                );
                let message = format_args!("{} probe warning: {output}", self.key.kind);
                self.tell(reason::PROBE_WARNING, message);
                (ProbeResult::Success, output)
            }
            Ok(Outcome::Failure(output)) => {
                debug!(
                    container = self.key.container, container_id = id,
                    probe = %self.key.kind, output, "probe failed"
                );
                let message = format_args!("{} probe failed: {output}", self.key.kind);
                self.tell(reason::UNHEALTHY, message);
                (ProbeResult::Failure, output)
            }
            Err(error) => {
                // The error is unrelated to the state of the container.
                debug!(
                    container = self.key.container, container_id = id,
                    probe = %self.key.kind, %error, "cannot probe"
                );
                let message = format_args!(
                    "{} probe errored and resulted in unknown state: {error}",
                    self.key.kind
                );
                self.tell(reason::UNHEALTHY, message);
                return;
            }
        };
        let succeeded = result == ProbeResult::Success;
        let metrics = &self.shared.metrics;
        metrics.probed(self.probing(), succeeded, took);
        if self.last == Some(result) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(result);
            self.run = 1;
        }
        let threshold = match result {
            ProbeResult::Success => positive(self.probe.success_threshold).unwrap_or(1),
            _ => positive(self.probe.failure_threshold).unwrap_or(3),
        };
        if self.run < threshold {
            return;
        }
        self.set(id, result, &output).await;
        let restarts = self.key.kind == ProbeType::Liveness && result == ProbeResult::Failure;
        if restarts || self.key.kind == ProbeType::Startup {
            // The container is being stopped, or has started: no further probes.
            self.on_hold = true;
            self.run = 0;
        }
    }

    fn probing(&self) -> Probing<'_> {
        Probing {
            pod: &self.probed.pod,
            container: &self.key.container,
            kind: self.key.kind,
        }
    }

    fn tell(&self, reason: &str, message: fmt::Arguments<'_>) {
        let subject = Subject::Container(&self.probed.pod, &self.key.container);
        self.shared.events.warning(subject, reason, message);
    }

    async fn set(&self, id: &str, result: ProbeResult, why: &str) {
        if self.shared.set(&self.key, id, result).await {
            info!(
                container = self.key.container, container_id = id,
                probe = %self.key.kind, %result, why, "probe result"
            );
        }
    }

    /// Whether the container is started again after it ended.
    fn is_restarted(&self, exit_code: i32) -> bool {
        self.probed.pod.spec.as_ref().is_some_and(|spec| {
            restart_rules::can_restart_all(spec)
                || restart_rules::restarts(spec, &self.probed.container, exit_code)
        })
    }
}

impl Drop for Worker {
    /// However it ended: what it found is void, and another may begin.
    fn drop(&mut self) {
        if let Some(id) = &self.container_id {
            self.shared.results.remove(id, self.key.kind);
        }
        self.shared.metrics.forget(self.probing());
        self.shared.forget(&self.key);
    }
}

fn is_running(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    state.is_some_and(|state| state.running.is_some())
}

/// The id in the runtime of `<runtime>://<id>`.
fn bare_id(id: &str) -> Option<&str> {
    let id = id.split_once("://").map_or(id, |(_, id)| id);
    (!id.is_empty()).then_some(id)
}
