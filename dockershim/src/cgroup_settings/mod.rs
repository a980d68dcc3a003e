//! Cgroup settings that the engine has no parameter for (`unified`).
//!
//! They can be written only once the container is running. Settings that failed to be written, that
//! the shim did not write before a crash, or that others changed are written in the next round of
//! [`crate::resync`]: a user may have restarted the container, and systemd resets settings that it
//! does not know when its configuration is reloaded (<https://github.com/moby/moby/issues/51446>).

pub(crate) mod unified;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use cri_proto::runtime::v1::ContainerState;

use crate::{
    Error,
    checkpoint::Checkpoints,
    labels::Unified,
    model::{Container, Snapshot},
    process::Processes,
};

/// The cgroup settings of all containers.
#[derive(Debug)]
pub struct CgroupSettings {
    /// The mount point of cgroup v2.
    cgroups: PathBuf,
    processes: Arc<Processes>,
    /// The current settings of containers whose settings were changed after creation.
    changed: Arc<Checkpoints<Unified>>,
    /// The result of the last attempt, by container. Locked during a write.
    attempts: tokio::sync::Mutex<HashMap<String, WriteAttempt>>,
    failed: AtomicU64,
}

/// The result of writing the settings of a container whose first process is `pid`.
#[derive(Debug, PartialEq, Eq)]
struct WriteAttempt {
    pid: i64,
    /// What the files said then; `None` if the attempt failed.
    written: Option<Unified>,
}

// === impl CgroupSettings ===

impl CgroupSettings {
    /// Creates the store below `root_directory`.
    pub fn new(root_directory: &Path, processes: Arc<Processes>) -> Self {
        Self {
            cgroups: unified::ROOT.into(),
            processes,
            changed: Arc::new(Checkpoints::new(root_directory.join("cgroup-settings"))),
            attempts: tokio::sync::Mutex::default(),
            failed: AtomicU64::new(0),
        }
    }

    /// How often settings could not be written.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Writes the settings of a running `container`. A failure is counted, logged and retried
    /// later; the container keeps running.
    pub async fn write(&self, container: &Container) {
        let mut attempts = self.attempts.lock().await;
        self.try_to_write(container, &mut attempts).await;
    }

    /// Changes the settings of a running `container` for the rest of its life. The others are
    /// written, too: an update by the engine may have changed them.
    ///
    /// # Errors
    /// As `unified::apply`, or the change could not be saved for a later restart.
    pub async fn change(&self, container: &Container, change: Unified) -> Result<(), Error> {
        // Serialises concurrent changes.
        let mut attempts = self.attempts.lock().await;
        if change.is_empty() {
            self.try_to_write(container, &mut attempts).await;
            return Ok(());
        }
        let mut wanted = self.wanted(container).await;
        wanted.extend(change);
        let written = unified::apply(&self.cgroups, &self.processes, container, &wanted).await?;
        let now = WriteAttempt {
            pid: container.pid,
            written: Some(written),
        };
        attempts.insert(container.id().to_owned(), now);
        let (changed, id) = (Arc::clone(&self.changed), container.id().to_owned());
        let saved = tokio::task::spawn_blocking(move || changed.save(&id, &wanted)).await;
        match saved {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::Panicked("save cgroup settings")),
        }
    }

    /// Writes the settings of every running container that does not have them or has others, and
    /// forgets removed containers.
    pub async fn restore(&self, snapshot: &Snapshot) {
        let mut attempts = self.attempts.lock().await;
        attempts.retain(|id, _| snapshot.contains(id));
        for container in snapshot.containers() {
            let runs = container.status.state() == ContainerState::ContainerRunning;
            if !runs || container.provisional {
                continue;
            }
            let attempt = attempts.get(container.id());
            let written = attempt.filter(|attempt| attempt.pid == container.pid);
            if let Some(files) = written.and_then(|attempt| attempt.written.as_ref()) {
                if files.is_empty() || !self.differ(container, files).await {
                    continue;
                }
                tracing::info!(
                    container = container.name(),
                    container_id = container.id(),
                    "others changed the container's cgroup settings; writing them again"
                );
            }
            self.try_to_write(container, &mut attempts).await;
        }
        let ids: Vec<String> = snapshot.ids().map(|id| id.to_string()).collect();
        let changed = Arc::clone(&self.changed);
        let forget = move || changed.retain(|kept| ids.iter().any(|id| id == kept));
        // A failed removal is retried in the next round.
        let _ = tokio::task::spawn_blocking(forget).await;
    }

    async fn differ(&self, container: &Container, files: &Unified) -> bool {
        unified::differs(&self.cgroups, &self.processes, container, files).await
    }

    async fn try_to_write(
        &self,
        container: &Container,
        attempts: &mut HashMap<String, WriteAttempt>,
    ) {
        let wanted = self.wanted(container).await;
        let result = unified::apply(&self.cgroups, &self.processes, container, &wanted).await;
        let (written, error) = match result {
            Ok(written) => (Some(written), None),
            Err(error) => (None, Some(error)),
        };
        let pid = container.pid;
        let failed = WriteAttempt { pid, written: None };
        let now = WriteAttempt { pid, written };
        let before = attempts.insert(container.id().to_owned(), now);
        if let Some(error) = error {
            self.failed.fetch_add(1, Ordering::Relaxed);
            if before != Some(failed) {
                tracing::warn!(
                    container = container.name(),
                    container_id = container.id(),
                    %error,
                    "cannot apply some of the container's cgroup settings; retrying every 30 s"
                );
            }
        }
    }

    async fn wanted(&self, container: &Container) -> Unified {
        let (changed, id) = (Arc::clone(&self.changed), container.id().to_owned());
        let changed = tokio::task::spawn_blocking(move || changed.load(&id)).await;
        let changed = changed.ok().flatten();
        changed.unwrap_or_else(|| container.unified.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use cri_proto::runtime::v1::ContainerStatus;

    use super::*;
    use crate::model::Record;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const PID: i64 = 7;

    /// A test node: procfs and cgroup v2 in a temporary directory.
    struct Node {
        dir: tempfile::TempDir,
    }

    impl Node {
        fn new() -> Self {
            let node = Self {
                dir: tempfile::tempdir().unwrap(),
            };
            node.start(PID);
            node
        }

        /// Simulates a running container with an empty cgroup.
        fn start(&self, pid: i64) {
            let process = self.dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&process).unwrap();
            fs::write(process.join("cgroup"), format!("0::/{ID}\n")).unwrap();
            let group = self.dir.path().join("cgroup").join(ID);
            let _ = fs::remove_dir_all(&group);
            fs::create_dir_all(&group).unwrap();
            for file in ["memory.high", "memory.oom.group"] {
                fs::write(group.join(file), "").unwrap();
            }
        }

        fn settings(&self) -> CgroupSettings {
            let processes = Processes::in_procfs(&self.dir.path().join("proc"));
            CgroupSettings {
                cgroups: self.dir.path().join("cgroup"),
                ..CgroupSettings::new(self.dir.path(), Arc::new(processes))
            }
        }

        fn file(&self, name: &str) -> String {
            let path = self.dir.path().join("cgroup").join(ID).join(name);
            fs::read_to_string(path).unwrap()
        }
    }

    fn snapshot(pid: i64, unified: &[(&str, &str)]) -> Snapshot {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let container = Container {
            status: ContainerStatus {
                id: ID.into(),
                state: ContainerState::ContainerRunning.into(),
                ..Default::default()
            },
            sandbox_id: "s".into(),
            docker_name: String::new(),
            pid,
            engine_log: String::new(),
            cri_log: false,
            unified: unified.iter().map(owned).collect(),
            image_mounts: Default::default(),
            upper_dir: String::new(),
            provisional: false,
        };
        let mut snapshot = Snapshot::default();
        snapshot.set(&ID.into(), Some(Record::Container(Arc::new(container))));
        snapshot
    }

    #[tokio::test]
    async fn settings_come_back_after_a_crash_and_after_a_restart() {
        let node = Node::new();
        let wanted = [("memory.high", "100"), ("memory.oom.group", "1")];
        // The shim crashed before it wrote them.
        let settings = node.settings();
        settings.restore(&snapshot(PID, &wanted)).await;
        assert_eq!(node.file("memory.high"), "100");
        assert_eq!(node.file("memory.oom.group"), "1");

        let container = snapshot(PID, &wanted).container(ID).unwrap();
        let change = Unified::from([("memory.high".to_owned(), "200".to_owned())]);
        settings.change(&container, change).await.unwrap();
        assert_eq!(node.file("memory.high"), "200");
        // The engine updates other limits, and the runtime resets what it does not know.
        let by_engine = |node: &Node| {
            let group = node.dir.path().join("cgroup").join(ID);
            fs::write(group.join("memory.oom.group"), "0").unwrap();
        };
        by_engine(&node);
        settings.change(&container, Unified::new()).await.unwrap();
        assert_eq!(node.file("memory.oom.group"), "1");
        by_engine(&node);
        let change = Unified::from([("memory.high".to_owned(), "200".to_owned())]);
        settings.change(&container, change).await.unwrap();
        assert_eq!(node.file("memory.oom.group"), "1");
        node.start(PID + 1);
        let again = node.settings();
        again.restore(&snapshot(PID + 1, &wanted)).await;
        assert_eq!(node.file("memory.high"), "200");
        assert_eq!(node.file("memory.oom.group"), "1");
        assert_eq!(again.failed(), 0);

        again.restore(&Snapshot::default()).await;
        node.start(PID + 2);
        again.restore(&snapshot(PID + 2, &wanted)).await;
        assert_eq!(node.file("memory.high"), "100");
    }

    #[tokio::test]
    async fn what_others_changed_and_what_failed_is_written_again() {
        let node = Node::new();
        let settings = node.settings();
        let wanted = [("memory.high", "100"), ("memory.low", "1")];
        settings.restore(&snapshot(PID, &wanted)).await;
        assert_eq!(settings.failed(), 1);
        let group = node.dir.path().join("cgroup").join(ID);
        fs::write(group.join("memory.low"), "").unwrap();
        settings.restore(&snapshot(PID, &wanted)).await;
        assert_eq!(
            (settings.failed(), node.file("memory.low").as_str()),
            (1, "1")
        );
        fs::write(group.join("memory.high"), "max").unwrap();
        settings.restore(&snapshot(PID, &wanted)).await;
        assert_eq!(node.file("memory.high"), "100");
        assert_eq!(settings.failed(), 1);
        // It is not written without need: the kernel shows values in its own form.
        fs::write(group.join("memory.low"), "1\n").unwrap();
        settings.restore(&snapshot(PID, &wanted)).await;
        assert_eq!(node.file("memory.low"), "1\n");
    }
}
