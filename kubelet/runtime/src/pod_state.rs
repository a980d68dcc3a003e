//! The in-memory state of a pod between syncs.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use k8s_openapi::api::core::v1::Container;
use kubelet_cri_client::pod_status::{ContainerState, ContainerStatus, PodStatus};
use kubelet_image::PullBackoff;
use kubelet_pacing::backoff::Backoff;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// A container that ran for this long resets its back-off, as upstream.
const RESTART_BACKOFF_RESET: Duration = Duration::from_secs(600);

/// The delays before containers restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartDelays {
    /// The first one; at most the longest. It doubles with each restart.
    pub first: Duration,
    /// The longest one.
    pub longest: Duration,
}

impl Default for RestartDelays {
    /// Upstream's.
    fn default() -> Self {
        Self {
            first: Duration::from_secs(10),
            longest: Duration::from_secs(300),
        }
    }
}

/// Why a container waits, as shown in its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// A single word.
    pub reason: String,
    /// Details for people.
    pub message: String,
}

/// The in-memory state of one pod worker. It is lost when the kubelet restarts, as upstream: a
/// restarted kubelet restarts dead containers at once.
#[derive(Debug)]
pub struct PodState {
    /// Back-off of failed image pulls.
    pub pulls: Mutex<PullBackoff>,
    restarts: Mutex<Restarts>,
    waiting: Mutex<BTreeMap<String, Waiting>>,
    /// The containers that the sync which is under way has started.
    started: Mutex<Vec<String>>,
    /// ID of the newest container that this worker created, by name.
    created: Mutex<BTreeMap<String, String>>,
    /// Whether the sync that is under way has created a sandbox.
    sandbox_made: watch::Sender<bool>,
    /// When the kubelet first saw the pod.
    seen: Instant,
}

#[derive(Debug)]
struct Restarts {
    backoff: Backoff,
    /// When each dead container was first seen dead, by ID. The exit time that the runtime reports
    /// is from a different clock.
    seen_dead: HashMap<String, Instant>,
}

/// The crash-loop back-off of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashLoop {
    /// The delay between the end of a run and the next start.
    pub delay: Duration,
    /// The rest of the delay.
    pub remaining: Duration,
}

impl PodState {
    /// The state of a new worker.
    pub fn new(delays: RestartDelays) -> Self {
        Self {
            pulls: Mutex::default(),
            restarts: Mutex::new(Restarts {
                backoff: Backoff::new(delays.first, delays.longest)
                    .reset_after(RESTART_BACKOFF_RESET),
                seen_dead: HashMap::new(),
            }),
            waiting: Mutex::default(),
            started: Mutex::default(),
            created: Mutex::default(),
            sandbox_made: watch::Sender::default(),
            seen: Instant::now(),
        }
    }

    /// Sets the time when the kubelet first saw the pod.
    pub fn seen_at(mut self, seen: Instant) -> Self {
        self.seen = seen;
        self
    }

    /// When the kubelet first saw the pod.
    pub const fn seen(&self) -> Instant {
        self.seen
    }

    /// Checks that the container may be started now, and records the attempt.
    ///
    /// # Errors
    /// The container is in crash-loop back-off.
    pub fn attempt_start(
        &self,
        container: &Container,
        status: &PodStatus,
    ) -> Result<(), CrashLoop> {
        let dead = status
            .containers
            .iter()
            .find(|c| c.name == container.name && c.state == ContainerState::Exited);
        let Some(dead) = dead else {
            return Ok(());
        };
        self.see_dead(status);
        let mut restarts = self.restarts.lock();
        let Restarts { backoff, seen_dead } = &mut *restarts;
        let seen = *seen_dead
            .entry(dead.id.clone())
            .or_insert_with(Instant::now);
        let key = backoff_key(container);
        if let Some((remaining, delay)) = backoff.remaining(&key, seen) {
            return Err(CrashLoop { delay, remaining });
        }
        backoff.attempt(&key, seen);
        Ok(())
    }

    /// Records which containers are dead by now. The back-off of a container that is killed and
    /// started again in one sync counts from the end of its run before, as upstream.
    fn see_dead(&self, status: &PodStatus) {
        let seen_dead = &mut self.restarts.lock().seen_dead;
        seen_dead.retain(|id, _| status.containers.iter().any(|c| c.id == *id));
        let is_dead = |c: &&ContainerStatus| c.state == ContainerState::Exited;
        for dead in status.containers.iter().filter(is_dead) {
            seen_dead
                .entry(dead.id.clone())
                .or_insert_with(Instant::now);
        }
    }

    /// A sync begins. Its `status` shows what the earlier ones made and started.
    pub fn begin_sync(&self, status: &PodStatus) {
        self.see_dead(status);
        self.sandbox_made.send_replace(false);
        for started in self.started.lock().drain(..) {
            self.clear_waiting(&started);
        }
    }

    /// The sync has created a sandbox with its network.
    pub(crate) fn made_sandbox(&self) {
        self.sandbox_made.send_replace(true);
    }

    /// Whether the sync has created a sandbox.
    pub fn has_made_sandbox(&self) -> bool {
        *self.sandbox_made.borrow()
    }

    /// Waits until the sync creates a sandbox.
    pub async fn sandbox_made(&self) {
        let mut made = self.sandbox_made.subscribe();
        // The sender is not dropped before this.
        let _ = made.wait_for(|made| *made).await;
    }

    /// Records a created container.
    pub fn created(&self, container: &str, id: &str) {
        let mut created = self.created.lock();
        created.insert(container.to_owned(), id.to_owned());
    }

    /// The newest container created with this name, if `status` does not list it: it has been
    /// removed, or `status` is older.
    pub fn unlisted_container(&self, container: &str, status: &PodStatus) -> Option<String> {
        let created = self.created.lock();
        let id = created.get(container)?;
        let is_listed = status.containers.iter().any(|c| c.id == *id);
        (!is_listed).then(|| id.clone())
    }

    /// The containers that could not be started, with the reasons.
    pub fn waiting(&self) -> BTreeMap<String, Waiting> {
        self.waiting.lock().clone()
    }

    /// The container was started. It is no longer shown as waiting from the next sync on, which has
    /// the status to show instead.
    pub fn started(&self, container: &str) {
        self.started.lock().push(container.to_owned());
    }

    /// The container may be started now.
    pub fn clear_waiting(&self, container: &str) {
        self.waiting.lock().remove(container);
    }

    /// The container could not be started.
    pub fn set_waiting(&self, container: &str, reason: &str, message: String) {
        let reason = reason.to_owned();
        self.waiting
            .lock()
            .insert(container.to_owned(), Waiting { reason, message });
    }
}

/// The key of a container's back-off. A different image or different resources start a new
/// back-off.
fn backoff_key(container: &Container) -> String {
    // Serialisation cannot fail: the value was deserialised from JSON.
    let resources = serde_json::to_string(&container.resources).unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    format!("{}/{image}/{resources}", container.name)
}
