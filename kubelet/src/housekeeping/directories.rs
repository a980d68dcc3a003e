//! Removes the directories of pods that no longer exist.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_cri_client::pod_status::ContainerState;
use kubelet_host::{local_node::LocalNode, repeatable};
use kubelet_logs::links;
use kubelet_pod_spec::{directory, identity::PodUid};
use kubelet_volume::{VolumeManager, disk};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::OrphanMetrics;
use crate::{pleg::Listing, pod::removals::Removals, pod_worker::WorkerError};

/// Between two scans of the directories.
const PERIOD: Duration = Duration::from_secs(60);

/// The state of the clean-up of directories.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    /// When the last scan began.
    scanned: Option<Instant>,
    cleaning: CleanupTasks,
}

/// The input of one scan.
#[derive(Clone)]
pub(super) struct ScanInput<K> {
    pub(super) node: Arc<LocalNode>,
    pub(super) volumes: Arc<VolumeManager>,
    pub(super) listing: Arc<Listing>,
    /// Tells the pods' workers which removals are in progress.
    pub(super) removals: Removals,
    pub(super) orphans: Arc<OrphanMetrics>,
    /// Whether to keep a pod's directories. Evaluated again right before each removal: the steps
    /// before may take minutes.
    pub(super) keep: K,
}

impl Directories {
    /// Scans for directories to remove, unless the last scan was recent. Each directory is removed
    /// in its own task, so that one that hangs does not delay the others.
    pub(super) fn scan_if_due<K>(&mut self, input: ScanInput<K>)
    where
        K: Fn(&PodUid) -> bool + Clone + Send + Sync + 'static,
    {
        match self.scanned {
            Some(at) if at.elapsed() < PERIOD => return,
            // Every pod with volumes has had the time to declare them.
            Some(_) => input.volumes.settle(),
            None => {}
        }
        self.scanned = Some(Instant::now());
        let (pods, logs) = (input.clone(), input);
        let pods_dir = directory::pods_dir(&pods.node.root_dir);
        let removals = self.cleaning.clone();
        self.cleaning
            .begin(&pods_dir, remove_pod_dirs(pods, removals));
        let logs_dir = logs.node.pod_logs_dir.clone();
        self.cleaning.begin(&logs_dir, clean_logs(logs));
    }
}

/// The directories that are being cleaned or removed, each by one task.
#[derive(Clone, Debug, Default)]
struct CleanupTasks(Arc<Mutex<BTreeSet<PathBuf>>>);

impl CleanupTasks {
    /// Starts the task, unless the last one of the directory is still running.
    fn begin(&self, dir: &Path, work: impl Future<Output = ()> + Send + 'static) {
        if !self.0.lock().insert(dir.to_owned()) {
            return;
        }
        let one = CleanupGuard {
            all: self.clone(),
            dir: dir.to_owned(),
        };
        tokio::spawn(async move {
            let _one = one;
            work.await;
        });
    }
}

/// Removes the entry when its task ends for any reason.
struct CleanupGuard {
    all: CleanupTasks,
    dir: PathBuf,
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.dir);
    }
}

/// Starts to release the volumes of pods that are not kept, and to remove their directories.
async fn remove_pod_dirs<K>(input: ScanInput<K>, removals: CleanupTasks)
where
    K: Fn(&PodUid) -> bool + Clone + Send + Sync + 'static,
{
    let dir = directory::pods_dir(&input.node.root_dir);
    let found = repeatable::blocking(move || children(&dir)).await;
    let found = unless_panicked(found).unwrap_or_default().into_iter();
    let orphans: Vec<(PodUid, PathBuf)> = found
        .map(|(name, path)| (PodUid::from(name.as_str()), path))
        .filter(|(uid, _)| !(input.keep)(uid))
        .collect();
    input.orphans.scanned(orphans.len());
    for (uid, path) in orphans {
        let dir = path.clone();
        let input = input.clone();
        removals.begin(&path, async move {
            match remove_pod_dir(&input, &uid, dir.clone()).await {
                Ok(false) => {}
                removed => {
                    if removed.is_err() {
                        input.orphans.failed();
                    }
                    report(&dir, removed.map(drop));
                }
            }
        });
    }
}

/// Removes the directory of a pod, unless the pod is back once its volumes are released.
async fn remove_pod_dir<K: Fn(&PodUid) -> bool>(
    input: &ScanInput<K>,
    uid: &PodUid,
    dir: PathBuf,
) -> Result<bool, WorkerError> {
    input.volumes.find_volumes(uid).await?;
    {
        let _removal = input.removals.begin(uid);
        if (input.keep)(uid) {
            return Ok(false);
        }
        input.volumes.release(uid);
    }
    let given_back = input.volumes.wait_until_given_back(uid).await;
    let removal = input.removals.begin(uid);
    if (input.keep)(uid) {
        return Ok(false);
    }
    given_back?;
    kubelet_volume::blocking_on_own_files(move || {
        let _removal = removal;
        disk::remove_pod_dir(&dir)
    })
    .await?;
    Ok(true)
}

/// Removes the log directories of pods that are not kept, and dead links to logs.
async fn clean_logs<K: Fn(&PodUid) -> bool + Send + 'static>(input: ScanInput<K>) {
    let cleaned = repeatable::blocking(move || {
        for (name, path) in children(&input.node.pod_logs_dir) {
            let Some(uid) = directory::uid_of_log_dir(&name) else {
                continue;
            };
            let _removal = input.removals.begin(&uid);
            if !(input.keep)(&uid) {
                let removed = tree_walk::remove_all(&path);
                report(&path, removed.map_err(Into::into));
            }
        }
        if let Some(dir) = &input.node.container_logs_dir {
            links::remove_dead(dir, |id| may_run(&input.listing, id));
        }
    });
    unless_panicked(cleaned.await);
}

/// Whether a container that may run has an ID that starts with `id`.
fn may_run(listing: &Listing, id: &str) -> bool {
    let containers = listing
        .records
        .values()
        .flat_map(|record| &record.containers);
    containers
        .filter(|container| container.state != ContainerState::Exited)
        .any(|container| container.id.starts_with(id))
}

fn unless_panicked<T>(scanned: Result<T, tokio::task::JoinError>) -> Option<T> {
    scanned
        .inspect_err(|error| error!(%error, "the directory scan panicked"))
        .ok()
}

fn children(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut children: Vec<_> = entries
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
        .collect();
    children.sort_unstable();
    children
}

fn report(path: &Path, removed: Result<(), WorkerError>) {
    match removed {
        Ok(()) => info!(path = %path.display(), "removed a directory of an orphaned pod"),
        Err(error) => warn!(%error, "cannot remove a directory of an orphaned pod"),
    }
}

#[cfg(test)]
mod tests;
