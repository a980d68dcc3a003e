//! Keeps the model equal to what the engine has: connects, follows its events, looks at
//! everything again after each connect, and compares with the engine's own list in rounds.

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
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Difference, Id, Looker, Model, Record, Refresher, Sandbox, comparison::differences};
use crate::{
    container::CgroupSettings,
    engine::{Cause, Engine, EngineError, may_be_scratch},
    image::Images,
    labels, naming,
    network::cni::Cni,
    process::{ProcessError, Processes},
    shim::Names,
};

const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LAST_BACKOFF: Duration = Duration::from_secs(5);
/// How often a quiet engine is asked whether it is still there.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Calls in flight at most while everything is looked at.
const CONCURRENCY: usize = 8;
/// How long a sync waits for looks that hang, whose records stay what they are, and the first sync
/// for removals.
const SYNC_PATIENCE: Duration = Duration::from_secs(5);
/// The time from one comparison with the engine's list to the next.
const ROUND: Duration = Duration::from_secs(30);
/// The time from a connect to the first comparison: earlier requests may take effect late.
const FIRST_ROUND: Duration = Duration::from_secs(10);
/// How long an event that explains a difference may be under way.
const EVENT_LAG: Duration = Duration::from_secs(2);

/// What changes a container's record. `exec_*` and `health_status` do not, and would
/// make an inspect out of every probe.
const CONTAINER_EVENTS: &[&str] = &[
    "create", "start", "restart", "die", "oom", "pause", "unpause", "rename", "update", "destroy",
];
const IMAGE_EVENTS: &[&str] = &["pull", "load", "import", "tag", "untag", "delete", "prune"];

/// Keeps the model in sync with the engine.
#[derive(Debug)]
pub struct Sync {
    /// The engine that is followed.
    pub engine: Arc<Engine>,
    /// The model that is kept equal to it.
    pub model: Arc<Model>,
    /// The images, listed again when they changed.
    pub images: Arc<Images>,
    /// What inspects single containers.
    pub looker: Arc<Looker>,
    /// The queue of containers to inspect.
    pub refresher: Refresher,
    /// The pod network, which knows the sandboxes that lack theirs.
    pub cni: Option<Arc<Cni>>,
    /// What knows whether processes are still those of their containers.
    pub processes: Arc<Processes>,
    /// The settings that containers' cgroups are to hold.
    pub cgroup_settings: Arc<CgroupSettings>,
    /// What is being made now.
    pub names: Arc<Names>,
}

/// Why a connection to the engine ended.
#[derive(Debug, thiserror::Error)]
enum Disconnect {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the engine's event stream ended")]
    StreamEnded,
    #[error("the engine's event stream broke: {0}")]
    StreamBroke(bollard::errors::Error),
}

impl Sync {
    /// Runs until `stop`, connecting anew with back-off whenever the connection ends.
    pub async fn run(self, stop: CancellationToken) {
        let mut backoff = FIRST_BACKOFF;
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
                if began.elapsed() > LAST_BACKOFF {
                    backoff = FIRST_BACKOFF;
                }
                tracing::warn!(engine = %self.engine.endpoint(), reason, retry = ?backoff, "not connected to the engine");
                self.model.set_in_step(false);
                self.engine.set_away(reason);
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(LAST_BACKOFF);
            }
        };
        stop.run_until_cancelled(work).await;
    }

    /// One connection: from connect to the first failure.
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
        // Events since the engine's own now: nothing is lost between this line and the
        // moment at which the engine begins to send.
        let events = self.engine.events(subscription(connection.info.time))?;
        tokio::select! {
            end = self.follow(events) => end,
            end = self.watch_health() => end,
            end = self.stay_equal() => end,
        }
    }

    async fn follow(
        &self,
        events: impl Stream<Item = Result<EventMessage, bollard::errors::Error>>,
    ) -> Result<Infallible, Disconnect> {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            let event = event.map_err(Disconnect::StreamBroke)?;
            match event.typ {
                Some(EventMessageTypeEnum::CONTAINER) => self.on_container_event(event),
                Some(EventMessageTypeEnum::IMAGE) => self.images.wish_refresh(),
                _ => {}
            }
        }
        Err(Disconnect::StreamEnded)
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
            self.looker.removed(&id);
        } else {
            if event.action.as_deref() == Some("oom") {
                self.looker.oom_kills.note(&id);
            }
            self.refresher.wish(id.into());
        }
    }

    async fn watch_health(&self) -> Result<Infallible, Disconnect> {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            self.engine.ping().await?;
        }
    }

    /// Looks at everything once, then compares in rounds: only a failure of the former ends
    /// the connection. Events and health checks tell that the engine is gone.
    async fn stay_equal(&self) -> Result<Infallible, Disconnect> {
        self.images.wish_refresh();
        self.resync().await?;
        self.remove_left_overs().await;
        self.remove_scratch().await;
        self.write_cgroup_settings().await;
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
                    self.looker.tidy().await;
                    self.write_cgroup_settings().await;
                }
                Err(error) => tracing::warn!(%error, "the containers cannot be compared"),
            }
        }
    }

    /// Looks at everything once.
    async fn resync(&self) -> Result<(), EngineError> {
        let ticket = self.model.ticket();
        let listed = self.engine.list_containers(labels::TYPE).await?;
        let mut ids: HashSet<Id> = HashSet::with_capacity(listed.len());
        for summary in listed {
            let Some(id) = summary.id.clone() else {
                continue;
            };
            ids.insert(id.as_str().into());
            // Until its inspect has answered, what the list says has to do.
            if let Some(record) = Record::from_summary(summary) {
                self.model.put_if_absent(&ticket, &id, record);
            }
        }
        for id in self.model.snapshot().ids() {
            if !ids.contains(id) {
                self.looker.removed_as_of(&ticket, id);
            }
        }
        drop(ticket);
        let count = ids.len();
        let permits = Semaphore::new(CONCURRENCY);
        let looks = futures::stream::iter(ids).for_each_concurrent(None, async |id| {
            let looked = {
                let _permit = permits.acquire().await;
                self.looker.inspect(&id).await
            };
            match looked {
                Ok(looked) => self.looker.settle(&id, looked).await,
                Err(_) => self.refresher.wish(id),
            }
        });
        let mut looks = std::pin::pin!(looks);
        let in_time = tokio::time::timeout(SYNC_PATIENCE, &mut looks).await;
        if !self.model.synced() {
            if tokio::time::timeout(SYNC_PATIENCE, self.remove_half_made())
                .await
                .is_err()
            {
                tracing::warn!("the engine is slow to remove what is left over; going on without");
            }
            self.looker.tidy().await;
            self.model.set_synced();
        }
        self.model.set_in_step(true);
        if in_time.is_err() {
            tracing::warn!("the engine is slow to describe some containers; going on without");
            looks.await;
        }
        tracing::info!(containers = count, "in sync with the engine");
        Ok(())
    }

    /// Compares the model with the engine's list and looks again at what differs, unless something
    /// newer is heard while an event may be under way. `doubted` are processes that the engine has
    /// confirmed although they cannot be found. Returns the list.
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
            !self.looker.is_looking_at(id) && self.model.nothing_newer(&ticket, id)
        });
        for (id, difference) in &found {
            self.model.differences.count(*difference);
            let kind = difference.kind();
            tracing::warn!(
                container_id = &**id,
                kind,
                "an event was lost; looking at it again"
            );
        }
        let looks =
            futures::stream::iter(&found).for_each_concurrent(CONCURRENCY, async |(id, _)| {
                if self.looker.refresh(id).await.is_err() {
                    self.refresher.wish(Arc::clone(id));
                }
            });
        if tokio::time::timeout(SYNC_PATIENCE, looks).await.is_err() {
            for (id, _) in found {
                self.refresher.wish(id);
            }
        }
        Ok(listed)
    }

    /// What is said to run, but has a first process that is gone: it may have been restarted.
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

    /// Removes what the engine failed to remove, and what it made when nobody waited any more:
    /// requests from before a crash, the engine's or the shim's, may take effect after it.
    async fn remove_left_overs(&self) {
        self.remove_never_started().await;
        self.remove_failed().await;
    }

    async fn write_cgroup_settings(&self) {
        let snapshot = self.model.snapshot();
        self.cgroup_settings.write_missing(&snapshot).await;
    }

    /// Removes containers that were made to read an image's files.
    async fn remove_scratch(&self) {
        if let Err(error) = self.engine.remove_scratch().await {
            tracing::warn!(%error, "a container that was never started is left over");
        }
    }

    /// A sandbox that was created but never started, or not attached to its network, was
    /// being made when the shim last ended; nobody knows its id. To be called before any
    /// verb may make one.
    async fn remove_half_made(&self) {
        let snapshot = self.model.snapshot();
        let half_made = snapshot
            .sandboxes()
            .filter(|s| !s.provisional && (!s.started || self.is_half_attached(s)));
        self.remove_sandboxes(half_made).await;
    }

    /// Sandboxes that were created and not started, but for those that are being made.
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

    /// What failed while it was made, and could not be removed then, whether it runs or not.
    async fn remove_failed(&self) {
        for id in self.names.take_failed() {
            match self.engine.remove_container(&id, true).await {
                Err(error) if !error.is_not_found() => {
                    tracing::warn!(sandbox_id = id, %error, "cannot remove a half-made sandbox");
                    self.names.fail(&id);
                }
                _ => self.looker.removed(&id),
            }
        }
    }

    async fn remove_sandboxes<'a>(&self, sandboxes: impl Iterator<Item = &'a Arc<Sandbox>>) {
        let removals = futures::stream::iter(sandboxes);
        let remove = async |sandbox: &Arc<Sandbox>| {
            // What was begun of its network is detached once it is gone.
            match self
                .engine
                .remove_container(sandbox.id(), sandbox.started)
                .await
            {
                Ok(()) => {
                    self.looker.removed(sandbox.id());
                    tracing::info!(
                        pod = sandbox.pod(),
                        pod_uid = sandbox.uid(),
                        sandbox_id = sandbox.id(),
                        "removed a half-made sandbox"
                    );
                }
                Err(error) => {
                    tracing::warn!(sandbox_id = sandbox.id(), %error, "cannot remove a half-made sandbox");
                }
            }
        };
        removals.for_each_concurrent(CONCURRENCY, remove).await;
    }

    /// Whether a sandbox runs without a network, and nothing in it.
    fn is_half_attached(&self, sandbox: &Sandbox) -> bool {
        let lacks = self
            .cni
            .as_ref()
            .is_some_and(|cni| cni.lacks_network(sandbox));
        if !lacks {
            return false;
        }
        let empty = self
            .model
            .snapshot()
            .containers_of(sandbox.id())
            .next()
            .is_none();
        if !empty {
            tracing::warn!(
                pod = sandbox.pod(),
                sandbox_id = sandbox.id(),
                "nothing is remembered of a running sandbox's network"
            );
        }
        empty
    }
}

fn subscription(since: i128) -> EventsOptions {
    let nanos = 1_000_000_000;
    let list = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect::<Vec<_>>();
    EventsOptions {
        since: Some(format!("{}.{:09}", since / nanos, since % nanos)),
        until: None,
        filters: Some(HashMap::from([
            ("type".into(), list(&["container", "image"])),
            (
                "event".into(),
                list(&[CONTAINER_EVENTS, IMAGE_EVENTS].concat()),
            ),
        ])),
    }
}
