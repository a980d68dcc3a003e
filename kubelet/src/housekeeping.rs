//! Finds what belongs to no pod (any more): in the runtime, and on disk.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::Instant};
use tracing::{error, info, warn};

use crate::{
    config::options::Options,
    logs::links,
    pleg::Pleg,
    pod::{
        directory,
        identity::{self, PodUid},
        manager::PodManager,
        mirror::MirrorPods,
    },
    pod_syncer::{self, Syncer},
    pod_worker::{PodWorkers, WorkerError},
    prober::ProbeManager,
    repeatable,
    volume::{VolumeManager, disk},
};

/// Between two looks at the directories.
const DIRECTORIES_PERIOD: Duration = Duration::from_secs(60);

/// Housekeeping of the sync loop, done only once every source was read: before,
/// a pod that nobody asks for may be one that nobody has asked for yet.
#[derive(Debug)]
pub(crate) struct Housekeeping {
    pub(crate) options: Arc<Options>,
    pub(crate) pods: Arc<PodManager>,
    pub(crate) workers: Arc<PodWorkers<Syncer>>,
    pub(crate) probes: Arc<ProbeManager>,
    pub(crate) pleg: Arc<Pleg>,
    pub(crate) volumes: Arc<VolumeManager>,
    /// None without an API server.
    pub(crate) mirrors: Option<Arc<MirrorPods>>,
    /// The last look at the directories, and when it began.
    pub(crate) directories: Option<(JoinHandle<()>, Instant)>,
}

impl Housekeeping {
    /// Looks at what was last listed of the runtime and now and then at the
    /// directories. Does not block: workers do what is to be done.
    pub(crate) fn run(&mut self) {
        self.remove_orphaned_mirrors();
        let listing = self.pleg.listing();
        let Some(listed) = listing.at else {
            return;
        };
        self.workers.reap(listed);
        self.probes.cleanup(|uid| self.workers.is_known(uid));
        for (uid, record) in &listing.records {
            if self.workers.is_known(uid) {
                continue;
            }
            let full_name = format!("{}_{}", record.name, record.namespace);
            info!(pod = full_name, pod_uid = %uid, "ending a pod that no source has");
            self.workers.kill_orphan(uid, full_name);
        }
        let due = match &self.directories {
            None => true,
            Some((task, begun)) => task.is_finished() && begun.elapsed() >= DIRECTORIES_PERIOD,
        };
        if due {
            let options = Arc::clone(&self.options);
            let (pods, pleg) = (Arc::clone(&self.pods), Arc::clone(&self.pleg));
            let workers = Arc::clone(&self.workers);
            // Asked for each directory anew: a pod is known before it has one.
            let keep = move |uid: &PodUid| {
                pods.get(uid).is_some()
                    || workers.is_known(uid)
                    || pleg.listing().records.contains_key(uid)
            };
            let volumes = Arc::clone(&self.volumes);
            // Every pod that has volumes had the time to say so.
            if self.directories.is_some() {
                volumes.settle();
            }
            let listing = Arc::clone(&listing);
            let task = tokio::spawn(async move {
                remove_pod_dirs(&options, &volumes, &keep).await;
                let removed = repeatable::blocking(move || {
                    remove_log_dirs(&options, keep);
                    if let Some(dir) = &options.container_logs_dir {
                        links::remove_dead(dir, &listing);
                    }
                });
                if let Err(error) = removed.await {
                    error!(%error, "the look at the directories panicked");
                }
            });
            self.directories = Some((task, Instant::now()));
        }
    }

    /// A mirror pod stays until its static pod has ended.
    fn remove_orphaned_mirrors(&self) {
        let Some(mirrors) = &self.mirrors else {
            return;
        };
        for mirror in self.pods.orphaned_mirrors() {
            if !self.workers.has_static(&identity::full_name(&mirror)) {
                mirrors.remove(&mirror);
            }
        }
    }
}

/// Gives back the volumes of pods that are not to be kept, and removes their directories.
async fn remove_pod_dirs(
    options: &Options,
    volumes: &VolumeManager,
    keep: &(impl Fn(&PodUid) -> bool + Send + Sync),
) {
    let dir = directory::pods_dir(options);
    let found = pod_syncer::blocking(move || Ok(children(&dir))).await;
    let orphans = found
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(name, path)| {
            let uid = PodUid::from(name.as_str());
            (!keep(&uid)).then_some((uid, path))
        });
    // One whose volumes do not let go is to hold up no other.
    let removals = orphans.map(|(uid, path)| async move {
        let dir = path.clone();
        let removed = async {
            volumes.wait_for_unmount(&uid).await?;
            pod_syncer::blocking(move || Ok(disk::remove_pod_dir(&dir)?)).await
        };
        report(&path, removed.await);
    });
    futures::future::join_all(removals).await;
}

/// Removes the log directories of pods that are not to be kept.
fn remove_log_dirs(options: &Options, keep: impl Fn(&PodUid) -> bool) {
    for (name, path) in children(&options.pod_logs_dir) {
        if directory::uid_of_log_dir(&name).is_some_and(|uid| !keep(&uid)) {
            let removed = pod_syncer::remove_dir(path.clone());
            report(&path, removed);
        }
    }
}

fn children(dir: &Path) -> Vec<(String, std::path::PathBuf)> {
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
        Ok(()) => info!(path = %path.display(), "removed a directory that no pod has"),
        Err(error) => warn!(%error, "cannot remove a directory that no pod has"),
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        apiserver::objects::NoObjects,
        volume::{VolumeHost, plugins},
    };

    #[tokio::test]
    async fn directories_of_gone_pods_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let options = Options {
            root_dir: root.path().join("kubelet"),
            pod_logs_dir: root.path().join("logs"),
            ..Options::default()
        };
        let pods = directory::pods_dir(&options);
        for dir in ["live", "gone/volumes/kubernetes.io~empty-dir/v"] {
            std::fs::create_dir_all(pods.join(dir)).unwrap();
        }
        for dir in ["ns_a_live", "ns_b_gone", "not-ours"] {
            std::fs::create_dir_all(options.pod_logs_dir.join(dir)).unwrap();
        }
        let host = VolumeHost {
            options: Arc::new(options.clone()),
            objects: Arc::new(NoObjects),
            machine: Arc::default(),
        };
        let volumes = Arc::new(VolumeManager::new(
            host.clone(),
            plugins::all(&host, Arc::default()),
        ));
        let cancel = CancellationToken::new();
        let keep = |uid: &PodUid| uid.as_str() == "live";
        let clean = async {
            remove_pod_dirs(&options, &volumes, &keep).await;
            cancel.cancel();
        };
        tokio::join!(volumes.run(cancel.clone()), clean);
        remove_log_dirs(&options, keep);
        assert!(pods.join("live").exists() && !pods.join("gone").exists());
        let logs: Vec<String> = children(&options.pod_logs_dir)
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert_eq!(logs, ["not-ours", "ns_a_live"]);
    }
}
