//! What the kubelet remembers of a pod between two syncs, and nowhere else.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use k8s_openapi::api::core::v1::Container;
use kubelet_cri_client::pod_status::{ContainerState, PodStatus};
use kubelet_image::PullBackoff;
use kubelet_pacing::backoff::Backoff;
use parking_lot::Mutex;
use tokio::time::Instant;

/// First delay before a container is started again, as upstream.
const RESTART_BACKOFF_BASE: Duration = Duration::from_secs(10);
/// A container that ran for so long begins with that again, as upstream.
const RESTART_BACKOFF_RESET: Duration = Duration::from_secs(600);

/// Why a container waits, as its status shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// One word.
    pub reason: String,
    /// Details for people.
    pub message: String,
}

/// The memory of one pod's worker. Lost with the kubelet, as upstream: a
/// restarted kubelet starts dead containers at once.
#[derive(Debug)]
pub struct PodState {
    /// Failed pulls.
    pub pulls: Mutex<PullBackoff>,
    restarts: Mutex<Restarts>,
    waiting: Mutex<BTreeMap<String, Waiting>>,
    /// Id of the newest container of each name that this worker created.
    created: Mutex<BTreeMap<String, String>>,
    /// When the pod was first heard of.
    seen: Instant,
}

#[derive(Debug)]
struct Restarts {
    backoff: Backoff,
    /// When each dead container was first seen dead, by id. The runtime's own
    /// time of its end is by another clock.
    seen_dead: HashMap<String, Instant>,
}

/// A container that is not started again yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrashLoop {
    /// From the end of the last run to the start of the next.
    pub delay: Duration,
    /// What is left of it.
    pub remaining: Duration,
}

impl PodState {
    /// The memory of a new worker. `max_restart_period` bounds the delays.
    pub fn new(max_restart_period: Duration) -> Self {
        Self {
            pulls: Mutex::default(),
            restarts: Mutex::new(Restarts {
                backoff: Backoff::new(RESTART_BACKOFF_BASE, max_restart_period)
                    .reset_after(RESTART_BACKOFF_RESET),
                seen_dead: HashMap::new(),
            }),
            waiting: Mutex::default(),
            created: Mutex::default(),
            seen: Instant::now(),
        }
    }

    /// The same, of a pod that was first heard of at `seen`.
    pub fn seen_at(mut self, seen: Instant) -> Self {
        self.seen = seen;
        self
    }

    /// When the pod was first heard of.
    pub const fn seen(&self) -> Instant {
        self.seen
    }

    /// Whether the container may be started (again) now; if so, this counts as
    /// the attempt.
    ///
    /// # Errors
    /// It ended too recently.
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
        let mut restarts = self.restarts.lock();
        let Restarts { backoff, seen_dead } = &mut *restarts;
        seen_dead.retain(|id, _| status.containers.iter().any(|c| c.id == *id));
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

    /// A container was created.
    pub fn created(&self, container: &str, id: &str) {
        let mut created = self.created.lock();
        created.insert(container.to_owned(), id.to_owned());
    }

    /// The newest container of a name that was created, when `status` does not tell of it: it
    /// was removed since, or what the runtime lists is older.
    pub fn untold(&self, container: &str, status: &PodStatus) -> Option<String> {
        let created = self.created.lock();
        let id = created.get(container)?;
        let is_told = status.containers.iter().any(|c| c.id == *id);
        (!is_told).then(|| id.clone())
    }

    /// Why each container that could not be started waits.
    pub fn waiting(&self) -> BTreeMap<String, Waiting> {
        self.waiting.lock().clone()
    }

    /// The container was started, or nothing keeps it from it any more.
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

/// What is delayed together: a container that was given another image or other
/// resources begins anew.
fn backoff_key(container: &Container) -> String {
    // What was read from JSON can be written.
    let resources = serde_json::to_string(&container.resources).unwrap_or_default();
    let image = container.image.as_deref().unwrap_or_default();
    format!("{}/{image}/{resources}", container.name)
}
