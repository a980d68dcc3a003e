//! Detection of containers killed by the kernel's OOM killer. The engine's flag alone is not
//! reliable: it depends on events that the engine loses on a busy machine, typically when memory is
//! short.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
};

use cri_proto::runtime::v1::ContainerStatus;
use kernel_log::{KernelLog, OomKill};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::{
    checkpoint::Checkpoints,
    engine::EngineLocality,
    model::{Id, OOM_KILLED},
};

const KERNEL_LOG: &str = "/dev/kmsg";
/// How many victims are remembered before their containers' end is seen. The newest are kept.
const VICTIMS: usize = 512;

/// The known OOM kills, from the engine's events and the kernel log.
#[derive(Debug)]
pub struct OomKills {
    observed: Arc<Mutex<ObservedKills>>,
    /// Kills that the engine does not report, kept because the kernel log is overwritten.
    recorded: Arc<Checkpoints<RecordedKill>>,
    locality: EngineLocality,
}

#[derive(Debug)]
struct ObservedKills {
    log: KernelLogState,
    victims: VecDeque<Id>,
}

#[derive(Debug)]
enum KernelLogState {
    Unopened(PathBuf),
    Open(KernelLog),
    Unreadable,
}

/// The container was OOM-killed in the run that started at `started_at`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedKill {
    started_at: i64,
}

impl OomKills {
    /// Creates the detection; its findings are stored below `root_directory`. The kernel log is
    /// read only while the engine is local.
    pub fn new(root_directory: &Path, locality: EngineLocality) -> Self {
        Self::by_log(root_directory, locality, KERNEL_LOG.into())
    }

    fn by_log(root_directory: &Path, locality: EngineLocality, log: PathBuf) -> Self {
        Self {
            observed: Arc::new(Mutex::new(ObservedKills {
                log: KernelLogState::Unopened(log),
                victims: VecDeque::new(),
            })),
            recorded: Arc::new(Checkpoints::new(root_directory.join("oom-kills"))),
            locality,
        }
    }

    /// Records the engine's OOM event for `id`, which may arrive after the container has exited.
    pub fn note(&self, id: &str) {
        self.observed.lock().remember(id);
    }

    /// Corrects the reason of an exited container if the engine missed an OOM kill.
    pub async fn correct_reason(&self, status: &mut ContainerStatus) {
        if status.reason == OOM_KILLED || status.finished_at == 0 {
            return;
        }
        let (id, started_at) = (status.id.clone(), status.started_at);
        let (observed, recorded) = (Arc::clone(&self.observed), Arc::clone(&self.recorded));
        let is_local = self.locality.is_local();
        let look = tokio::task::spawn_blocking(move || {
            if recorded.load(&id) == Some(RecordedKill { started_at }) {
                return true;
            }
            let mut observed = observed.lock();
            if is_local {
                observed.read_log();
            }
            // Consumed once, as a user may start the container again.
            let killed = observed.take(&id);
            drop(observed);
            if killed && let Err(error) = recorded.note(&id, &RecordedKill { started_at }) {
                tracing::warn!(
                    container_id = id,
                    %error,
                    "cannot save the OOM kill; a restart will forget it"
                );
            }
            killed
        });
        if look.await.unwrap_or_default() {
            status.reason = OOM_KILLED.to_owned();
        }
    }

    /// Forgets containers that are not `is_live`.
    pub async fn retain(&self, is_live: impl Fn(&str) -> bool + Send + 'static) {
        let recorded = Arc::clone(&self.recorded);
        // A panic in the task has been logged already.
        let _ = tokio::task::spawn_blocking(move || recorded.retain(is_live)).await;
    }
}

impl ObservedKills {
    fn read_log(&mut self) {
        if let KernelLogState::Unopened(path) = &self.log {
            self.log = KernelLog::open(path).map_or_else(
                |error| {
                    tracing::warn!(
                        path = %path.display(),
                        %error,
                        "cannot open the kernel log; only the engine reports OOM kills"
                    );
                    KernelLogState::Unreadable
                },
                KernelLogState::Open,
            );
        }
        let Self { log, victims } = self;
        let KernelLogState::Open(open) = log else {
            return;
        };
        let each = |kill: OomKill<'_>| {
            if let OomKill::Container(id) = kill {
                remember(victims, id);
            }
        };
        if let Err(error) = open.read(each) {
            tracing::warn!(%error, "cannot read the kernel log any further");
            *log = KernelLogState::Unreadable;
        }
    }

    fn remember(&mut self, id: &str) {
        remember(&mut self.victims, id);
    }

    fn take(&mut self, id: &str) -> bool {
        let before = self.victims.len();
        self.victims.retain(|victim| &**victim != id);
        self.victims.len() < before
    }
}

fn remember(victims: &mut VecDeque<Id>, id: &str) {
    if victims.iter().any(|victim| &**victim == id) {
        return;
    }
    victims.truncate(VICTIMS - 1);
    victims.push_front(id.into());
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn kills(dir: &Path) -> OomKills {
        let locality = EngineLocality::default();
        locality.set(true);
        OomKills::by_log(dir, locality, dir.join("kmsg"))
    }

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    fn log(dir: &Path, ids: &[String]) {
        let line = |id| {
            format!(
                "6,1,2,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,\
                 mems_allowed=0,global_oom,task_memcg=/docker/{id},task=a,pid=7,uid=0\n"
            )
        };
        fs::write(dir.join("kmsg"), ids.iter().map(line).collect::<String>()).unwrap();
    }

    async fn reason(kills: &OomKills, id: &str, started_at: i64) -> String {
        let mut status = ContainerStatus {
            id: id.to_owned(),
            started_at,
            finished_at: started_at + 1,
            reason: "Error".to_owned(),
            ..Default::default()
        };
        kills.correct_reason(&mut status).await;
        status.reason
    }

    #[tokio::test]
    async fn a_kill_that_the_engine_lost_is_in_the_kernels_log() {
        let dir = tempfile::tempdir().unwrap();
        log(dir.path(), &[id('a'), id('b')]);
        let kills = kills(dir.path());
        assert_eq!(reason(&kills, &id('a'), 1).await, OOM_KILLED);
        assert_eq!(reason(&kills, &id('c'), 1).await, "Error");
        // A second look, and a container that a user restarted.
        assert_eq!(reason(&kills, &id('a'), 1).await, OOM_KILLED);
        assert_eq!(reason(&kills, &id('a'), 5).await, "Error");
    }

    #[tokio::test]
    async fn what_was_found_outlives_the_shim_and_the_kernels_log() {
        let dir = tempfile::tempdir().unwrap();
        log(dir.path(), &[id('a')]);
        assert_eq!(reason(&kills(dir.path()), &id('a'), 1).await, OOM_KILLED);
        log(dir.path(), &[]);
        let kills = kills(dir.path());
        assert_eq!(reason(&kills, &id('a'), 1).await, OOM_KILLED);
        kills.retain(|_| false).await;
        assert_eq!(reason(&kills, &id('a'), 1).await, "Error");
    }

    #[tokio::test]
    async fn a_late_event_of_the_engine_is_enough() {
        let dir = tempfile::tempdir().unwrap();
        let kills = OomKills::by_log(
            dir.path(),
            EngineLocality::default(),
            dir.path().join("kmsg"),
        );
        log(dir.path(), &[id('b')]);
        kills.note(&id('a'));
        assert_eq!(reason(&kills, &id('a'), 1).await, OOM_KILLED);
        // The engine is remote, so this kernel's log does not cover its containers.
        assert_eq!(reason(&kills, &id('b'), 1).await, "Error");
    }

    #[tokio::test]
    async fn a_node_without_a_log_goes_by_the_engine() {
        let dir = tempfile::tempdir().unwrap();
        let kills = kills(dir.path());
        assert_eq!(reason(&kills, &id('a'), 1).await, "Error");
        kills.note(&id('a'));
        assert_eq!(reason(&kills, &id('a'), 1).await, OOM_KILLED);
    }

    #[test]
    fn the_newest_victims_are_remembered() {
        let mut victims = VecDeque::new();
        for victim in 0..=VICTIMS {
            remember(&mut victims, &victim.to_string());
            remember(&mut victims, &victim.to_string());
        }
        assert_eq!(victims.len(), VICTIMS);
        assert!(victims.iter().all(|victim| &**victim != "0"));
    }
}
