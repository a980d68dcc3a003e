//! Container logs at the paths where the kubelet expects them.
//!
//! The engine logs to json-files of bounded size. Each running container has a `FileFollower` that
//! converts new entries to CRI's format, at the path in the CRI request. If there are no such files
//! or they are not accessible, an `ApiFollower` reads the log from the engine's API instead. A
//! container is reported as exited when its log is complete. The position of each log is saved as a
//! checkpoint, so that a restart neither repeats nor loses entries.

mod api_follower;
mod cri;
mod engine_file;
mod file_follower;
mod json_file;
mod log_file;
mod log_location;
mod loss;
mod position;
mod save;
mod sink;
mod stream_position;
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
use api_follower::ApiFollower;
pub(crate) use engine_file::backlog;
use file_follower::{FileFollower, FollowerCommand};
pub use json_file::to_cri;
use log_file::LogFile;
pub use log_file::Paths;
pub use loss::Loss;
use loss::{Episode, Losses};
pub use position::Position;
pub use sink::LogError;
pub use tail::{DrainProgress, Tail};
use watch::Watcher;

/// The number of logs read or written concurrently.
const AT_ONCE: usize = 4;
/// The number of logs synced to disk concurrently, in addition to those.
const SYNCS: usize = 2;
/// How long a container's exit may be delayed if its log cannot be completed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The checkpoints' directory, below the shim's root directory.
const DIRECTORY: &str = "logs";

/// The logs of all containers.
#[derive(Debug)]
pub struct Logs {
    engine: Arc<Engine>,
    shared: Arc<Shared>,
    followers: Mutex<HashMap<String, FollowerHandle>>,
}

/// State shared by the followers.
#[derive(Debug)]
pub(crate) struct Shared {
    checkpoints: Checkpoints<Position>,
    /// Whether the shim removes the engine's files that have been converted.
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
struct FollowerHandle {
    commands: mpsc::UnboundedSender<FollowerCommand>,
    task: JoinHandle<()>,
}

impl Logs {
    /// Creates the logs of `engine`'s containers, which the engine logs with `driver`; checkpoints
    /// are stored below `root`.
    pub fn new(root: &Path, engine: Arc<Engine>, driver: LogDriver) -> Self {
        let watcher = Watcher::start()
            .inspect_err(|error| {
                tracing::warn!(
                    %error,
                    "cannot watch the engine's logs; polling them twice a second"
                );
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

    /// Creates a container's log file, which clients expect to exist once the container has
    /// started.
    pub async fn create(&self, container: &Container) {
        // The engine reports its own log file only once the container has started.
        let Some(log) = cri_path(container) else {
            return;
        };
        let made = tokio::task::spawn_blocking(move || LogFile::open(&log)).await;
        if let Ok(Err(error)) = made {
            tracing::warn!(container_id = container.id(), %error, "cannot create the log yet");
        }
    }

    /// Follows the log of a running container, if it has one that is not followed yet.
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
        let (commands, inbox) = mpsc::unbounded_channel();
        let id = container.id().to_owned();
        let shared = Arc::clone(&self.shared);
        let engine = Arc::clone(&self.engine);
        let of = id.clone();
        let task = tokio::spawn(async move {
            if shared.sees(&paths).await {
                FileFollower::new(of, paths, shared).run(inbox).await;
            } else {
                ApiFollower::new(of, paths.log, engine, shared)
                    .run(inbox)
                    .await;
            }
        });
        followers.insert(id, FollowerHandle { commands, task });
    }

    /// Completes the log of an exited container. Returns when it is complete, or after a timeout;
    /// the follower then keeps trying.
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
            self.command(id, FollowerCommand::Finish(done));
            // A follower that has ended drops the sender, which also ends the wait.
            let _ = finished.await;
        };
        if tokio::time::timeout(PATIENCE, completed).await.is_err() {
            tracing::warn!(
                container_id = id,
                "reporting the container as exited before its log is complete"
            );
            return;
        }
        self.followers
            .lock()
            .retain(|other, handle| other != id || !handle.task.is_finished());
    }

    /// Requests the completion of an exited container's log, if it is followed.
    pub fn end(&self, id: &str) {
        let (done, _) = oneshot::channel();
        self.command(id, FollowerCommand::Finish(done));
    }

    /// `ReopenContainerLog`: continues in a new file at the log's path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the container's log is not followed, else [`Error::Log`].
    pub async fn reopen(&self, id: &str) -> Result<(), Error> {
        let (done, reopened) = oneshot::channel();
        self.command(id, FollowerCommand::Reopen(done));
        match reopened.await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Error::FailedPrecondition(format!(
                "the log of container {id} is not being written"
            ))),
        }
    }

    /// Forgets a removed container.
    pub fn forget(&self, id: &str) {
        let follower = self.followers.lock().remove(id);
        if let Some(handle) = &follower {
            // A follower that has ended has already converted everything.
            let _ = handle.commands.send(FollowerCommand::Remove);
        }
        let (id, shared) = (id.to_owned(), Arc::clone(&self.shared));
        tokio::spawn(async move {
            // The follower may be ending for another reason and save a last checkpoint, so wait for
            // it.
            if let Some(handle) = follower {
                let _ = handle.task.await;
            }
            shared.forget(&id).await;
        });
    }

    /// Removes the checkpoints of containers that are not `is_live`.
    pub async fn retain(&self, is_live: impl Fn(&str) -> bool + Send + 'static) {
        let shared = Arc::clone(&self.shared);
        let mut nothing = None::<()>;
        let work = move |_: &mut _| shared.checkpoints.retain(is_live);
        self.shared.blocking(&mut nothing, work).await;
    }

    /// Saves the position of each log and stops following.
    pub async fn close(&self) {
        let handles: Vec<_> = self.followers.lock().drain().collect();
        for (_, handle) in &handles {
            // A follower that has ended has nothing left to save.
            let _ = handle.commands.send(FollowerCommand::Stop);
        }
        for (_, handle) in handles {
            let _ = handle.task.await;
        }
    }

    /// Bytes written to logs since the start.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// The delay, in seconds, between the engine's timestamp of the last line and its arrival in
    /// the log.
    pub fn lag_seconds(&self) -> f64 {
        self.shared.lag_nanos.load(Ordering::Relaxed) as f64 / 1e9
    }

    /// How often output was lost for this reason.
    pub fn lost(&self, loss: Loss) -> u64 {
        self.shared.losses.get(loss)
    }

    /// How often a save was due while the previous one was still in progress.
    pub fn late_saves(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
    }

    fn is_followed(&self, id: &str) -> bool {
        let followers = self.followers.lock();
        followers
            .get(id)
            .is_some_and(|handle| !handle.task.is_finished())
    }

    fn command(&self, id: &str, command: FollowerCommand) {
        if let Some(handle) = self.followers.lock().get(id) {
            // A follower that has ended drops the command, which also ends the caller's wait.
            let _ = handle.commands.send(command);
        }
    }
}

impl Shared {
    /// Loads the saved position of a log.
    async fn load(self: &Arc<Self>, id: &str) -> Option<Position> {
        let (id, shared) = (id.to_owned(), Arc::clone(self));
        let mut nothing = None::<()>;
        let load = self.blocking(&mut nothing, move |_| shared.checkpoints.load(&id));
        load.await.flatten()
    }

    /// Whether nothing is left to convert of a log that is not followed: it is complete, or the
    /// engine's file is gone.
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

    /// Whether the engine's log files are accessible.
    async fn sees(&self, paths: &Paths) -> bool {
        let paths = paths.clone();
        let mut nothing = None::<()>;
        let look = self.blocking(&mut nothing, move |_| paths.are_visible());
        look.await.unwrap_or_default()
    }

    /// Saves the beginning of a new log before anything is written. After a crash, the lines
    /// written are then known by the log's length instead of by their timestamps, which several
    /// lines may share.
    fn note_beginning(&self, id: &str, beginning: &Position) {
        if let Err(error) = self.checkpoints.note(id, beginning) {
            tracing::warn!(
                container_id = id,
                %error,
                "cannot save the beginning of the log; after a crash, lines are matched by \
                 timestamp"
            );
        }
    }

    /// Removes the saved position of a log.
    async fn forget(self: &Arc<Self>, id: &str) {
        let (id, shared) = (id.to_owned(), Arc::clone(self));
        let mut nothing = None::<()>;
        self.blocking(&mut nothing, move |_| shared.checkpoints.remove(&id))
            .await;
    }

    /// Counts and logs a loss.
    fn lose(&self, loss: Loss, log: &Path) {
        let mut episode = Episode::default();
        episode.count(loss, log);
        episode.hand_on(&self.losses);
    }

    fn count_late(&self) {
        self.late.fetch_add(1, Ordering::Relaxed);
    }

    /// Runs blocking `work` on the thread pool; only a few at a time for all logs.
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
        // A panic is a bug and has been logged; the log is opened again.
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

/// The paths of a container's log and of the engine's; `None` if the log is not in CRI's format.
fn paths(container: &Container) -> Option<Paths> {
    let log = cri_path(container)?;
    Some(Paths {
        engine_log: PathBuf::from(&container.engine_log),
        log,
    })
}

/// The path of a container's log in CRI's format.
fn cri_path(container: &Container) -> Option<PathBuf> {
    let log = &container.status.log_path;
    (container.cri_log && !log.is_empty()).then(|| PathBuf::from(log))
}

#[cfg(test)]
mod tests;
