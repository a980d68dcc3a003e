//! Access to containers' processes. The engine reports the pid of a container's first process.
//! Another process may have that pid by the time it is used, and the pids of a remote engine mean
//! nothing on this machine. So a process is accessed through a handle that never refers to a later
//! process with the same pid, and only if its cgroup has the container's id.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use cgroup_stats::{Process, has_ended};

use crate::engine::EngineLocality;

/// Finds containers' processes.
#[derive(Debug)]
pub struct Processes {
    proc: PathBuf,
    engine: EngineLocality,
}

/// Why a process could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The container is not running.
    #[error("container {0} is not running")]
    Ended(String),
    /// The container's engine runs on another machine or in another pid namespace.
    #[error("container {0} belongs to an engine whose processes are not visible on this machine")]
    Elsewhere(String),
    /// The pid belongs to a process outside the container.
    #[error("process {pid} does not belong to container {container}")]
    Foreign {
        /// The pid.
        pid: i64,
        /// The container's id.
        container: String,
    },
    /// The process's files could not be read.
    #[error("inspect process {pid}: {source}")]
    File {
        /// The pid.
        pid: i64,
        /// The cause.
        source: io::Error,
    },
}

// === impl Processes ===

impl Processes {
    /// Creates the lookup for the containers of `engine`.
    pub fn new(engine: EngineLocality) -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            engine,
        }
    }

    /// Creates the lookup for a local engine, with procfs mounted at `proc`.
    #[cfg(test)]
    pub(crate) fn in_procfs(proc: &Path) -> Self {
        let engine = EngineLocality::default();
        engine.set(true);
        Self {
            proc: proc.to_owned(),
            engine,
        }
    }

    /// The mount point of procfs.
    pub(crate) fn proc(&self) -> &Path {
        &self.proc
    }

    /// Opens the process `pid` of the container with the full id `container`. Blocks.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub fn open(&self, container: &str, pid: i64) -> Result<Process, ProcessError> {
        if !self.engine.is_local() {
            return Err(ProcessError::Elsewhere(container.to_owned()));
        }
        if pid <= 0 {
            return Err(ProcessError::Ended(container.to_owned()));
        }
        let process = Process::hold(&self.proc, pid).map_err(|source| {
            if has_ended(&source) {
                ProcessError::Ended(container.to_owned())
            } else {
                ProcessError::File { pid, source }
            }
        })?;
        if process.is_in(container) {
            return Ok(process);
        }
        Err(ProcessError::Foreign {
            pid,
            container: container.to_owned(),
        })
    }

    /// [`Processes::open`] on the blocking thread pool.
    ///
    /// # Errors
    /// See [`ProcessError`].
    pub async fn find(
        self: &Arc<Self>,
        container: &str,
        pid: i64,
    ) -> Result<Process, ProcessError> {
        let (this, id) = (Arc::clone(self), container.to_owned());
        let task = tokio::task::spawn_blocking(move || this.open(&id, pid));
        let failed = |error| ProcessError::File {
            pid,
            source: io::Error::other(error),
        };
        task.await.map_err(failed)?
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const ID: &str = "0123456789abcdef";

    fn processes(table: &str) -> (tempfile::TempDir, Processes) {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("7")).unwrap();
        fs::write(proc.path().join("7/cgroup"), table).unwrap();
        let processes = Processes::in_procfs(proc.path());
        (proc, processes)
    }

    #[test]
    fn what_cannot_be_the_containers_process_is_told_from_what_has_ended() {
        let (_proc, own) = processes("0::/docker/0123456789abcdef");
        assert!(own.open(ID, 7).is_ok());
        assert!(matches!(own.open(ID, 8), Err(ProcessError::Ended(_))));
        assert!(matches!(own.open(ID, 0), Err(ProcessError::Ended(_))));
        let other = own.open("ffff", 7).unwrap_err();
        assert_eq!(
            other.to_string(),
            "process 7 does not belong to container ffff"
        );
        own.engine.set(false);
        let elsewhere = own.open(ID, 7);
        assert!(matches!(elsewhere, Err(ProcessError::Elsewhere(_))));
    }
}
