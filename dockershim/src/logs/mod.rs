//! Containers' logs, where the kubelet finds them.
//!
//! The engine logs to json-files of bounded size. Each running container has a
//! [`Follower`] that converts what comes to CRI's format, at the path that CRI asked for;
//! where there are no such files, or they cannot be seen from here, it is a [`Streamed`] that
//! has them from the engine's API. A container is reported as exited when its log is complete. How far it
//! has come is a checkpoint, so that a restart repeats and loses nothing.

mod cri;
mod engine_file;
mod follower;
mod json_file;
mod log_file;
mod loss;
mod place;
mod position;
mod save;
mod since;
mod sink;
mod streamed;
pub mod symlink;
mod tail;
mod watch;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    task::JoinHandle,
};

use crate::{Error, checkpoint::Checkpoints, config::LogDriver, engine::Engine, model::Container};
use follower::{Follower, Order};
pub use json_file::to_cri;
use log_file::LogFile;
pub use log_file::Paths;
pub use loss::Loss;
use loss::{Episode, Losses};
pub use position::Position;
pub use sink::LogError;
use streamed::Streamed;
pub use tail::{Drained, Tail};
use watch::Watcher;

/// Logs that are read or written at the same time.
const AT_ONCE: usize = 4;
/// Logs that are brought to disk at the same time, beside those.
const SYNCS: usize = 2;
/// A container's end is reported this late at most when its log cannot be completed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The directory of the checkpoints, under the shim's root.
const DIRECTORY: &str = "logs";

/// The logs of all containers.
#[derive(Debug)]
pub struct Logs {
    engine: Arc<Engine>,
    shared: Arc<Shared>,
    followers: Mutex<HashMap<String, Handle>>,
}

/// What followers share.
#[derive(Debug)]
pub(crate) struct Shared {
    checkpoints: Checkpoints<Position>,
    /// Whether the engine's files are the shim's to remove when they were taken.
    trims: bool,
    watcher: Option<Arc<Watcher>>,
    permits: Semaphore,
    syncs: Semaphore,
    bytes: AtomicU64,
    late: AtomicU64,
    losses: Losses,
    lag_nanos: AtomicI64,
}

#[derive(Debug)]
struct Handle {
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<()>,
}

impl Logs {
    /// No logs yet of the containers of `engine`, which logs by `driver`; checkpoints are kept
    /// under `root`.
    pub fn new(root: &Path, engine: Arc<Engine>, driver: LogDriver) -> Self {
        let watcher = Watcher::start()
            .inspect_err(|error| {
                tracing::warn!(%error, "the engine's logs cannot be watched; they are looked at twice a second");
            })
            .ok();
        Self {
            engine,
            shared: Arc::new(Shared {
                checkpoints: Checkpoints::new(root.join(DIRECTORY)),
                trims: driver == LogDriver::JsonFile,
                watcher,
                permits: Semaphore::new(AT_ONCE),
                syncs: Semaphore::new(SYNCS),
                bytes: AtomicU64::new(0),
                late: AtomicU64::new(0),
                losses: Losses::default(),
                lag_nanos: AtomicI64::new(0),
            }),
            followers: Mutex::default(),
        }
    }

    /// Makes the file of a container's log, which clients expect when it has started.
    pub async fn create(&self, container: &Container) {
        // The engine names its own file only once the container starts.
        let Some(log) = cri_path(container) else {
            return;
        };
        let made = tokio::task::spawn_blocking(move || LogFile::open(&log)).await;
        if let Ok(Err(error)) = made {
            tracing::warn!(container_id = container.id(), %error, "the log cannot be made yet");
        }
    }

    /// Follows the log of a container that runs, if it has one and is not followed yet.
    pub fn follow(&self, container: &Container) {
        let Some(paths) = paths(container) else {
            return;
        };
        let mut followers = self.followers.lock();
        if followers
            .get(container.id())
            .is_some_and(|handle| !handle.task.is_finished())
        {
            return;
        }
        let (orders, inbox) = mpsc::unbounded_channel();
        let id = container.id().to_owned();
        let shared = Arc::clone(&self.shared);
        let engine = Arc::clone(&self.engine);
        let of = id.clone();
        let task = tokio::spawn(async move {
            if shared.sees(&paths).await {
                Follower::new(of, paths, shared).run(inbox).await;
            } else {
                Streamed::new(of, paths.log, engine, shared)
                    .run(inbox)
                    .await;
            }
        });
        followers.insert(id, Handle { orders, task });
    }

    /// Completes the log of a container that has ended. Returns when it is complete, or
    /// after a while when it cannot be completed: it is still tried then.
    pub async fn finish(&self, container: &Container) {
        let Some(paths) = paths(container) else {
            return;
        };
        let id = container.id();
        let completed = async {
            if !self.is_followed(id) {
                if self.shared.is_done(id, paths).await {
                    return;
                }
                self.follow(container);
            }
            let (done, finished) = oneshot::channel();
            self.order(id, Order::Finish(done));
            // A follower that ended drops it, which is an answer.
            let _ = finished.await;
        };
        if tokio::time::timeout(PATIENCE, completed).await.is_err() {
            tracing::warn!(
                container_id = id,
                "the container is reported as ended before its log is complete"
            );
            return;
        }
        self.followers
            .lock()
            .retain(|other, handle| other != id || !handle.task.is_finished());
    }

    /// Has the log of a container that has ended completed, if it is followed yet.
    pub fn end(&self, id: &str) {
        let (done, _) = oneshot::channel();
        self.order(id, Order::Finish(done));
    }

    /// `ReopenContainerLog`: goes on with a new file at the path of the log.
    ///
    /// # Errors
    /// `FailedPrecondition` when the container has no log that is followed, else
    /// [`Error::Log`].
    pub async fn reopen(&self, id: &str) -> Result<(), Error> {
        let (done, reopened) = oneshot::channel();
        self.order(id, Order::Reopen(done));
        match reopened.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Error::FailedPrecondition(format!(
                "the log of container {id} is not being written"
            ))),
        }
    }

    /// Forgets a container that was removed.
    pub fn forget(&self, id: &str) {
        let follower = self.followers.lock().remove(id);
        if let Some(handle) = &follower {
            // One that has ended has taken all.
            let _ = handle.orders.send(Order::Remove);
        }
        let (id, shared) = (id.to_owned(), Arc::clone(&self.shared));
        tokio::spawn(async move {
            // It may be at its end for another reason, and note that down last.
            if let Some(handle) = follower {
                let _ = handle.task.await;
            }
            shared.forget(&id).await;
        });
    }

    /// Removes what is remembered of containers that are no more.
    pub async fn retain(&self, is_live: impl Fn(&str) -> bool + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let mut nothing = None::<()>;
        let work = move |_: &mut _| shared.checkpoints.retain(is_live);
        self.shared.blocking(&mut nothing, work).await;
    }

    /// Notes down how far each log has come, and follows none any more.
    pub async fn close(&self) {
        let handles: Vec<_> = self.followers.lock().drain().collect();
        for (_, handle) in &handles {
            // One that has ended has nothing left to note down.
            let _ = handle.orders.send(Order::Leave);
        }
        for (_, handle) in handles {
            let _ = handle.task.await;
        }
    }

    /// Bytes written to logs since the start.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// How long after the engine noted it down the last line was in its log, in seconds.
    pub fn lag_seconds(&self) -> f64 {
        self.shared.lag_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// How often output was lost for this reason.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.shared.losses.get(loss)
    }

    /// How often a position was to be noted down while the disk was still at the last one.
    pub fn late_saves(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
    }

    fn is_followed(&self, id: &str) -> bool {
        let followers = self.followers.lock();
        followers
            .get(id)
            .is_some_and(|handle| !handle.task.is_finished())
    }

    fn order(&self, id: &str, order: Order) {
        if let Some(handle) = self.followers.lock().get(id) {
            // One that has ended drops the order, which is an answer.
            let _ = handle.orders.send(order);
        }
    }
}

impl Shared {
    /// How far a log had come.
    async fn load(self: &Arc<Self>, id: &str) -> Option<Position> {
        let (id, shared) = (id.to_owned(), Arc::clone(self));
        let mut nothing = None::<()>;
        let load = self.blocking(&mut nothing, move |_| shared.checkpoints.load(&id));
        load.await.flatten()
    }

    /// Whether nothing is left to be taken of a log that is not followed: it is complete, or
    /// the engine's is gone.
    async fn is_done(self: &Arc<Self>, id: &str, paths: Paths) -> bool {
        let (id, shared) = (id.to_owned(), Arc::clone(self));
        let mut nothing = None::<()>;
        let look = self.blocking(&mut nothing, move |_| {
            let known = shared.checkpoints.load(&id);
            known.is_some_and(|position| position.complete)
                || paths.are_visible() && !paths.engine_log.exists()
        });
        look.await.unwrap_or_default()
    }

    /// Whether the engine's files of a log can be seen from here.
    async fn sees(&self, paths: &Paths) -> bool {
        let paths = paths.clone();
        let mut nothing = None::<()>;
        let look = self.blocking(&mut nothing, move |_| paths.are_visible());
        look.await.unwrap_or_default()
    }

    /// Forgets how far a log had come.
    async fn forget(self: &Arc<Self>, id: &str) {
        let (id, shared) = (id.to_owned(), Arc::clone(self));
        let mut nothing = None::<()>;
        self.blocking(&mut nothing, move |_| shared.checkpoints.remove(&id))
            .await;
    }

    /// Counts what was lost of a log, and tells of it.
    fn lose(&self, loss: Loss, log: &Path) {
        let mut episode = Episode::default();
        episode.count(loss, log);
        episode.hand_on(&self.losses);
    }

    fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs what may block on a thread for that, a few at a time for all logs.
    async fn blocking<S: Send + 'static, T: Send + 'static>(
        &self,
        open: &mut Option<S>,
        work: impl FnOnce(&mut Option<S>) -> T + Send + 'static,
    ) -> Option<T> {
        let _permit = self.permits.acquire().await.ok()?;
        let mut taken = open.take();
        let task = tokio::task::spawn_blocking(move || {
            let result = work(&mut taken);
            (taken, result)
        });
        // A panic is a bug, and was logged; the log is opened again.
        let (taken, result) = task.await.ok()?;
        *open = taken;
        Some(result)
    }

    fn count(&self, bytes: u64, last: Option<jiff::Timestamp>) {
        if bytes == 0 {
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if let Some(last) = last {
            let lag = jiff::Timestamp::now().as_nanosecond() - last.as_nanosecond();
            let lag = i64::try_from(lag).unwrap_or(i64::MAX).max(0);
            self.lag_nanos.store(lag, Ordering::Relaxed);
        }
    }
}

/// Where a container's log and the engine's are; `None` without one of CRI's format.
fn paths(container: &Container) -> Option<Paths> {
    let log = cri_path(container)?;
    Some(Paths {
        engine_log: PathBuf::from(&container.engine_log),
        log,
    })
}

/// Where a container's log of CRI's format is.
fn cri_path(container: &Container) -> Option<PathBuf> {
    let log = &container.status.log_path;
    (container.cri_log && !log.is_empty()).then(|| PathBuf::from(log))
}

#[cfg(test)]
mod tests;
