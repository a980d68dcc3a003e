//! Keeps the model in sync with the engine: connects, follows the engine's events, inspects every
//! container again after each connect, and periodically compares the model with the engine's list.

mod inspector;

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    sync::Arc,
    time::Duration,
};

use bollard::{
    models::{ContainerSummary, EventMessage, EventMessageTypeEnum},
    query_parameters::EventsOptions,
};
use cri_proto::runtime::v1::ContainerState;
use futures::{Stream, StreamExt as _};
use retry_delay::RetryDelay;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

pub use self::inspector::{Inspector, Refresher};

use crate::{
    cgroup_settings::CgroupSettings,
    engine::{Cause, Engine, EngineError, may_be_scratch},
    images::Images,
    labels,
    model::{Difference, Id, Model, Record, Sandbox, differences},
    name_reservations::NameReservations,
    naming,
    network::{cni::Cni, shaping::Shaping},
    process::{ProcessError, Processes},
};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);
/// How often an idle connection to the engine is checked.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The number of concurrent calls during a full resync.
const CONCURRENCY: usize = 8;
/// How long a sync waits for slow inspects, whose records stay provisional or stale, and the first
/// sync for removals.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);
/// The interval between comparisons with the engine's list.
const ROUND: Duration = Duration::from_secs(30);
/// The delay of the first comparison after a connect, as earlier requests may take effect late.
const FIRST_ROUND: Duration = Duration::from_secs(10);
/// How long to wait for an event that may explain a difference.
const EVENT_LAG: Duration = Duration::from_secs(2);
/// The maximum age of the engine's description. The engine starts programs to answer.
const DESCRIPTION_AGE: Duration = Duration::from_secs(300);

/// The events that change a container's record. `exec_*` and `health_status` do not, and would
/// cause an inspect for every probe.
const CONTAINER_EVENTS: &[&str] = &[
    "create", "start", "restart", "die", "oom", "pause", "unpause", "rename", "update", "destroy",
];
const IMAGE_EVENTS: &[&str] = &["pull", "load", "import", "tag", "untag", "delete", "prune"];
/// The engine has read its configuration again.
const DAEMON_EVENTS: &[&str] = &["reload"];

/// Keeps the model in sync with the engine.
#[derive(Debug)]
pub struct ModelSync {
    /// The engine.
    pub engine: Arc<Engine>,
    /// The model to keep in sync.
    pub model: Arc<Model>,
    /// The images, listed again when they change.
    pub images: Arc<Images>,
    /// Inspects single containers.
    pub inspector: Arc<Inspector>,
    /// The queue of containers to inspect.
    pub refresher: Refresher,
    /// The CNI plugins, which know the sandboxes without a network.
    pub cni: Option<Arc<Cni>>,
    /// Checks whether pids still belong to their containers.
    pub processes: Arc<Processes>,
    /// The cgroup settings to write.
    pub cgroup_settings: Arc<CgroupSettings>,
    /// The bandwidth limits to set.
    pub shaping: Arc<Shaping>,
    /// The names of containers that are being created.
    pub names: Arc<NameReservations>,
}

/// Why a connection to the engine ended.
#[derive(Debug, thiserror::Error)]
enum Disconnect {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the engine's event stream ended")]
    StreamEnded,
    #[error("the engine's event stream failed: {0}")]
    StreamBroke(bollard::errors::Error),
}

impl ModelSync {
    /// Runs until `stop`; reconnects with back-off when the connection ends.
    pub async fn run(self, stop: CancellationToken) {
        let mut retry = RetryDelay::new(FIRST_RETRY, LAST_RETRY);
        let work = async {
            loop {
                let began = tokio::time::Instant::now();
                let Err(end) = self.follow_engine().await;
                let reason = match end {
                    Disconnect::Engine(EngineError {
                        cause: Cause::Unreachable(why),
                        ..
                    }) => why,
                    other => other.to_string(),
                };
                if began.elapsed() > LAST_RETRY {
                    retry.reset();
                }
                let delay = retry.after_failure();
                tracing::warn!(engine = %self.engine.endpoint(), reason, retry = ?delay, "not connected to the engine");
                self.model.set_in_step(false);
                self.engine.set_disconnected(reason);
                tokio::time::sleep(delay).await;
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// Follows one connection until its first failure.
    async fn follow_engine(&self) -> Result<Infallible, Disconnect> {
        let connection = self.engine.connect().await?;
        let (major, minor) = connection.api;
        tracing::info!(
            engine = %self.engine.endpoint(),
            version = connection.info.version,
            api = format!("{major}.{minor}"),
            cgroup_driver = connection.info.cgroup_driver.as_str_name(),
            "connected to the engine"
        );
        // Events since the engine's current time, so that none are lost before the stream begins.
        let events = self.engine.events(subscription(connection.info.time))?;
        let reloaded = Notify::new();
        tokio::select! {
            end = self.follow(events, &reloaded) => end,
            end = self.describe_again(&reloaded) => end,
            end = self.watch_health() => end,
            end = self.stay_equal() => end,
        }
    }

    async fn follow(
        &self,
        events: impl Stream<Item = Result<EventMessage, bollard::errors::Error>>,
        reloaded: &Notify,
    ) -> Result<Infallible, Disconnect> {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let event = event.map_err(Disconnect::StreamBroke)?;
            match event.typ {
                Some(EventMessageTypeEnum::CONTAINER) => self.on_container_event(event),
                Some(EventMessageTypeEnum::IMAGE) => self.images.request_refresh(),
                Some(EventMessageTypeEnum::DAEMON) => reloaded.notify_one(),
                _ => {}
            }
        }
        Err(Disconnect::StreamEnded)
    }

    /// Reads the engine's description again after it has read its configuration, and periodically.
    async fn describe_again(&self, reloaded: &Notify) -> Result<Infallible, Disconnect> {
        loop {
            let _ = tokio::time::timeout(DESCRIPTION_AGE, reloaded.notified()).await;
            if let Err(error) = self.engine.refresh_info().await {
                tracing::warn!(%error, "cannot read the engine's configuration again");
            }
        }
    }

    fn on_container_event(&self, event: EventMessage) {
        let Some(actor) = event.actor else { return };
        let Some(id) = actor.id else { return };
        let ours = actor
            .attributes
            .is_some_and(|attributes| attributes.contains_key(labels::TYPE));
        if !ours && !self.model.snapshot().contains(&id) {
            return;
        }
        if event.action.as_deref() == Some("destroy") {
            self.inspector.removed(&id);
        } else {
            if event.action.as_deref() == Some("oom") {
                self.inspector.oom_kills.note(&id);
            }
            self.refresher.enqueue(id.into());
        }
    }

    async fn watch_health(&self) -> Result<Infallible, Disconnect> {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            self.engine.ping().await?;
        }
    }

    /// Inspects all containers once, then compares periodically. Only a failure of the initial
    /// resync ends the connection; events and health checks detect that the engine is gone.
    async fn stay_equal(&self) -> Result<Infallible, Disconnect> {
        self.images.request_refresh();
        self.resync().await?;
        self.remove_left_overs().await;
        self.remove_scratch().await;
        self.apply_settings().await;
        let mut wait = FIRST_ROUND;
        let mut doubted = HashMap::new();
        loop {
            tokio::time::sleep(wait).await;
            wait = ROUND;
            match self.compare(&mut doubted).await {
                Ok(listed) => {
                    self.remove_left_overs().await;
                    if listed.iter().any(may_be_scratch) {
                        self.remove_scratch().await;
                    }
                    self.inspector.forget_removed().await;
                    self.apply_settings().await;
                }
                Err(error) => tracing::warn!(%error, "cannot compare the containers"),
            }
        }
    }

    /// Inspects every container once.
    async fn resync(&self) -> Result<(), EngineError> {
        let ticket = self.model.ticket();
        let listed = self.engine.list_containers(labels::TYPE).await?;
        let mut ids: HashSet<Id> = HashSet::with_capacity(listed.len());
        for summary in listed {
            let Some(id) = summary.id.clone() else {
                continue;
            };
            ids.insert(id.as_str().into());
            // The list's summary serves until the inspect completes.
            if let Some(record) = Record::from_summary(summary) {
                self.model.put_if_absent(&ticket, &id, record);
            }
        }
        for id in self.model.snapshot().ids() {
            if !ids.contains(id) {
                self.inspector.removed_as_of(&ticket, id);
            }
        }
        drop(ticket);
        let count = ids.len();
        let permits = Semaphore::new(CONCURRENCY);
        let inspects = futures::stream::iter(ids).for_each_concurrent(None, async |id| {
            let inspected = {
                let _permit = permits.acquire().await;
                self.inspector.inspect(&id).await
            };
            match inspected {
                Ok(inspected) => self.inspector.settle(&id, inspected).await,
                Err(_) => self.refresher.enqueue(id),
            }
        });
        let mut inspects = std::pin::pin!(inspects);
        let in_time = tokio::time::timeout(SYNC_PATIENCE, &mut inspects).await;
        if !self.model.synced() {
            if tokio::time::timeout(SYNC_PATIENCE, self.remove_half_made())
                .await
                .is_err()
            {
                tracing::warn!(
                    "the engine is slow to remove leftover sandboxes; not waiting for it"
                );
            }
            self.inspector.forget_removed().await;
            self.model.set_synced();
        }
        self.model.set_in_step(true);
        if in_time.is_err() {
            tracing::warn!("the engine is slow to inspect some containers; not waiting for it");
            inspects.await;
        }
        tracing::info!(containers = count, "in sync with the engine");
        Ok(())
    }

    /// Compares the model with the engine's list and inspects the containers that differ, unless
    /// newer information arrives within [`EVENT_LAG`]. `doubted` holds the processes that the
    /// engine has confirmed although they cannot be found. Returns the list.
    ///
    /// # Errors
    /// Any [`Cause`].
    async fn compare(
        &self,
        doubted: &mut HashMap<Id, i64>,
    ) -> Result<Vec<ContainerSummary>, EngineError> {
        let ticket = self.model.ticket();
        let listed = self.engine.list_containers(labels::TYPE).await?;
        let snapshot = self.model.snapshot();
        let mut found = differences(&snapshot, &listed);
        doubted.retain(|id, _| snapshot.contains(id));
        for (id, pid) in self.lost_processes().await {
            if doubted.insert(Arc::clone(&id), pid) != Some(pid) {
                found.push((id, Difference::Process));
            }
        }
        if found.is_empty() {
            return Ok(listed);
        }
        tokio::time::sleep(EVENT_LAG).await;
        found.retain(|(id, _)| {
            !self.inspector.is_inspecting(id) && self.model.nothing_newer(&ticket, id)
        });
        for (id, difference) in &found {
            self.model.differences.count(*difference);
            let kind = difference.kind();
            tracing::warn!(
                container_id = &**id,
                kind,
                "an event was lost; inspecting the container again"
            );
        }
        let inspects =
            futures::stream::iter(&found).for_each_concurrent(CONCURRENCY, async |(id, _)| {
                if self.inspector.refresh(id).await.is_err() {
                    self.refresher.enqueue(Arc::clone(id));
                }
            });
        if tokio::time::timeout(SYNC_PATIENCE, inspects).await.is_err() {
            for (id, _) in found {
                self.refresher.enqueue(id);
            }
        }
        Ok(listed)
    }

    /// Containers and sandboxes recorded as running whose first process is gone; they may have been
    /// restarted.
    async fn lost_processes(&self) -> Vec<(Id, i64)> {
        let (processes, snapshot) = (Arc::clone(&self.processes), self.model.snapshot());
        let lost = tokio::task::spawn_blocking(move || {
            let sandboxes = snapshot.sandboxes().map(|s| (s.id(), s.pid));
            let running = snapshot.containers().filter_map(|container| {
                let runs = container.status.state() == ContainerState::ContainerRunning;
                runs.then(|| (container.id(), container.pid))
            });
            let is_lost = |(id, pid): &(&str, i64)| {
                let error = processes.open(id, *pid).err();
                *pid > 0
                    && matches!(
                        error,
                        Some(ProcessError::Ended(_) | ProcessError::Foreign { .. })
                    )
            };
            let lost = sandboxes.chain(running).filter(is_lost);
            lost.map(|(id, pid)| (id.into(), pid)).collect()
        });
        lost.await.unwrap_or_default()
    }

    /// Removes sandboxes that the engine failed to remove, and those created after their request
    /// was abandoned: requests from before a crash of the engine or the shim may take effect after
    /// it.
    async fn remove_left_overs(&self) {
        self.remove_never_started().await;
        self.remove_failed().await;
    }

    /// Applies what can be set only once a container runs, where it is missing.
    async fn apply_settings(&self) {
        let snapshot = self.model.snapshot();
        self.cgroup_settings.restore(&snapshot).await;
        self.shaping.set_missing(&snapshot).await;
    }

    /// Removes containers that were created only to read an image's files.
    async fn remove_scratch(&self) {
        if let Err(error) = self.engine.remove_scratch().await {
            tracing::warn!(%error, "cannot remove a container created to read an image's files");
        }
    }

    /// Removes sandboxes that were never started, or not attached to their network. They were being
    /// created when the shim last stopped, and no client knows their ids. Must be called before any
    /// verb can create a sandbox.
    async fn remove_half_made(&self) {
        let snapshot = self.model.snapshot();
        let half_made = snapshot
            .sandboxes()
            .filter(|s| !s.provisional && (!s.started || self.is_half_attached(s)));
        self.remove_sandboxes(half_made).await;
        if let Some(cni) = &self.cni {
            let snapshot = self.model.snapshot();
            for sandbox in snapshot.sandboxes().filter(|it| cni.lacks_network(it)) {
                cni.recover(&self.processes, sandbox).await;
            }
        }
    }

    /// Removes sandboxes that were never started, except those that are being created.
    async fn remove_never_started(&self) {
        let snapshot = self.model.snapshot();
        let is_being_made = |sandbox: &Sandbox| {
            let metadata = sandbox.status.metadata.clone().unwrap_or_default();
            let name = naming::sandbox_name(&metadata);
            name.is_ok_and(|name| self.names.contains(&name))
        };
        let never_started = snapshot
            .sandboxes()
            .filter(|s| !s.provisional && !s.started && !is_being_made(s));
        self.remove_sandboxes(never_started).await;
    }

    /// Removes sandboxes and containers whose creation failed and that could not be removed then,
    /// running or not.
    async fn remove_failed(&self) {
        for id in self.names.take_failed() {
            match self.engine.remove_container(&id, true).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(
                        sandbox_id = id,
                        %error,
                        "cannot remove a partially created sandbox"
                    );
                    self.names.mark_failed(&id);
                }
                _ => self.inspector.removed(&id),
            }
        }
    }

    async fn remove_sandboxes<'a>(&self, sandboxes: impl Iterator<Item = &'a Arc<Sandbox>>) {
        let removals = futures::stream::iter(sandboxes);
        let remove = async |sandbox: &Arc<Sandbox>| {
            // CNI detaches a partly attached network once the sandbox is gone.
            match self
                .engine
                .remove_container(sandbox.id(), sandbox.started)
                .await
            {
                Ok(()) => {
                    self.inspector.removed(sandbox.id());
                    tracing::info!(
                        pod = sandbox.pod(),
                        pod_uid = sandbox.uid(),
                        sandbox_id = sandbox.id(),
                        "removed a partially created sandbox"
                    );
                }
                Err(error) => {
                    tracing::warn!(
                        sandbox_id = sandbox.id(),
                        %error,
                        "cannot remove a partially created sandbox"
                    );
                }
            }
        };
        removals.for_each_concurrent(CONCURRENCY, remove).await;
    }

    /// Whether a sandbox runs without a network and has no containers.
    fn is_half_attached(&self, sandbox: &Sandbox) -> bool {
        let cni = self.cni.as_ref();
        let lacks = cni.is_some_and(|cni| cni.lacks_network(sandbox));
        let snapshot = self.model.snapshot();
        lacks && snapshot.containers_of(sandbox.id()).next().is_none()
    }
}

fn subscription(since: i128) -> EventsOptions {
    let nanos = 1_000_000_000;
    let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    EventsOptions {
        since: Some(format!("{}.{:09}", since / nanos, since % nanos)),
        until: None,
        filters: Some(HashMap::from([
            ("type".into(), list(&["container", "image", "daemon"])),
            (
                "event".into(),
                list(&[CONTAINER_EVENTS, IMAGE_EVENTS, DAEMON_EVENTS].concat()),
            ),
        ])),
    }
}
