//! Rotates the logs of running containers that exceed a size.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::runtime::v1;
use kubelet_cri_client::{CriClient, CriError};
use kubelet_host::{clock, repeatable::blocking};
use rustix::fs::{FileType, Stat};
use tokio::{
    sync::Semaphore,
    task::{Id, JoinSet},
    time::MissedTickBehavior,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{log_path::LogPath, rotated};

/// When logs are rotated, and how many files are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationPolicy {
    /// Size in bytes at which a log is rotated (`containerLogMaxSize`).
    pub max_size: u64,
    /// Files per container, including the current one (`containerLogMaxFiles`); at least 2.
    pub max_files: usize,
    /// Logs rotated at the same time (`containerLogMaxWorkers`).
    pub max_workers: usize,
    /// Time between checks (`containerLogMonitorInterval`).
    pub monitor_interval: Duration,
}

impl Default for RotationPolicy {
    /// Upstream's defaults.
    fn default() -> Self {
        Self {
            max_size: 10 << 20,
            max_files: 5,
            max_workers: 1,
            monitor_interval: Duration::from_secs(10),
        }
    }
}

/// Why a log was not rotated.
#[derive(Debug, thiserror::Error)]
enum RotationError {
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error(transparent)]
    File(#[from] io::Error),
    #[error("the log rotation task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    #[error("failed to reopen the log; the rotation was undone: {0}")]
    Reopen(#[source] CriError),
}

/// Checks the logs of running containers periodically. An idle node costs one look at each file
/// and no call to the runtime.
pub struct LogRotation<R> {
    /// When to rotate.
    pub policy: RotationPolicy,
    /// The runtime.
    pub cri: CriClient,
    /// The running containers: the ID of each, and the path of its log.
    pub running: R,
}

impl<R> fmt::Debug for LogRotation<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogRotation")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl<R: Fn() -> Vec<(String, PathBuf)>> LogRotation<R> {
    /// Rotates until cancelled. A rotation in progress is left to the next run.
    pub async fn run(self, cancel: CancellationToken) {
        let mut looks = tokio::time::interval(self.policy.monitor_interval);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let workers = Arc::new(Semaphore::new(self.policy.max_workers.max(1)));
        let mut tasks = JoinSet::new();
        let mut busy: BTreeMap<String, Id> = BTreeMap::new();
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(done) = tasks.join_next_with_id() => {
                    let id = match done {
                        Ok((id, ())) => id,
                        Err(error) => error.id(),
                    };
                    busy.retain(|_, task| *task != id);
                }
                _ = looks.tick() => {
                    for id in self.due().await {
                        if busy.contains_key(&id) {
                            continue;
                        }
                        let (cri, policy) = (self.cri.clone(), self.policy);
                        let (workers, container) = (Arc::clone(&workers), id.clone());
                        let task = tasks.spawn(async move {
                            let _worker = workers.acquire_owned().await;
                            if let Err(error) = rotate(&cri, &container, policy).await {
                                warn!(
                                    container_id = container, %error,
                                    "cannot rotate a container log"
                                );
                            }
                        });
                        busy.insert(id, task.id());
                    }
                }
            }
        }
    }

    /// The running containers whose log is too large or missing.
    async fn due(&self) -> Vec<String> {
        let logs = (self.running)();
        let max_size = self.policy.max_size;
        let due = move || {
            let due = logs.into_iter().filter(|(_, path)| is_due(path, max_size));
            due.map(|(id, _)| id).collect()
        };
        blocking(due).await.unwrap_or_default()
    }
}

fn is_due(path: &Path, max_size: u64) -> bool {
    match LogPath::open(path).and_then(|log| log.stat()) {
        Ok(found) => is_too_long(&found, max_size),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// A link is rotated by its owner.
fn is_too_long(found: &Stat, max_size: u64) -> bool {
    FileType::from_raw_mode(found.st_mode).is_file()
        && u64::try_from(found.st_size).is_ok_and(|size| size >= max_size)
}

/// Rotates the log of a container, if the file at the runtime's path is too large.
async fn rotate(cri: &CriClient, id: &str, policy: RotationPolicy) -> Result<(), RotationError> {
    let status = match cri.container_status(id).await {
        Err(error) if error.is_not_found() => return Ok(()),
        status => status?,
    };
    // A container that is not running writes nothing more.
    if status.state() != v1::ContainerState::ContainerRunning || status.log_path.is_empty() {
        return Ok(());
    }
    let path = status.log_path;
    let looked_at = PathBuf::from(&path);
    let look = blocking(move || {
        let log = LogPath::open(&looked_at)?;
        Ok((log.stat()?, log))
    });
    let log = match look.await? {
        Err(error) if io::Error::kind(&error) == io::ErrorKind::NotFound => {
            debug!(
                container_id = id,
                path, "the log file does not exist; reopening it"
            );
            return Ok(cri.reopen_container_log(id).await?);
        }
        Err(error) => return Err(error.into()),
        Ok((found, _)) if !is_too_long(&found, policy.max_size) => return Ok(()),
        Ok((_, log)) => Arc::new(log),
    };
    let rotated = rotated::rotated_name(log.name(), clock::now());
    let (from, to) = (Arc::clone(&log), rotated.clone());
    let prepare = move || {
        rotated::make_room(&from, policy.max_files)?;
        from.rename(from.name(), &to)
    };
    blocking(prepare).await??;
    // After a crash here, the next check finds no log and reopens it.
    let Err(error) = cri.reopen_container_log(id).await else {
        info!(container_id = id, path, "rotated a container log");
        return Ok(());
    };
    // If the runtime reopened the log nevertheless, the new file stays.
    let back = blocking(move || log.rename(&rotated, log.name()));
    match back.await? {
        Err(taken) if taken.kind() == io::ErrorKind::AlreadyExists => Err(error.into()),
        Err(error) => Err(error.into()),
        Ok(()) => Err(RotationError::Reopen(error)),
    }
}
