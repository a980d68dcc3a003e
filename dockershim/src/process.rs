//! Access to containers' processes. The engine reports the pid of a container's first process.
//! Another process may have that pid by the time it is used, and the pids of a remote engine mean
//! nothing on this machine. So a process is accessed through a handle that never refers to a later
//! process with the same pid, and only if its cgroup has the container's id.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    process::{Signal, pidfd_send_signal},
};

use crate::engine::EngineLocality;

/// Exceeds any `/proc/<pid>/cgroup`, which has one line per controller.
const MAX_TABLE: u64 = 256 * 1024;
/// The suffix of cgroup names that systemd creates.
pub(crate) const SCOPE: &str = ".scope";

/// Finds containers' processes.
#[derive(Debug)]
pub struct Processes {
    proc: PathBuf,
    engine: EngineLocality,
}

/// A process of a container. Its files cannot be opened once it has exited.
#[derive(Debug)]
pub struct Process {
    /// `/proc/<pid>`.
    directory: OwnedFd,
    cgroups: String,
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
        let process = self.hold(pid).map_err(|source| {
            if has_ended(&source) {
                ProcessError::Ended(container.to_owned())
            } else {
                ProcessError::File { pid, source }
            }
        })?;
        if belongs(&process.cgroups, container) {
            return Ok(process);
        }
        Err(ProcessError::Foreign {
            pid,
            container: container.to_owned(),
        })
    }

    fn hold(&self, pid: i64) -> io::Result<Process> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, self.proc.join(pid.to_string()), flags, Mode::empty())?;
        let mut process = Process {
            directory,
            cgroups: String::new(),
        };
        let table = File::from(process.open("cgroup")?);
        table.take(MAX_TABLE).read_to_string(&mut process.cgroups)?;
        Ok(process)
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

// === impl Process ===

impl Process {
    /// Opens the process `pid`, whether in a container or not.
    #[cfg(test)]
    pub(crate) fn of_anyone(pid: u32) -> Self {
        Processes::new(EngineLocality::default())
            .hold(pid.into())
            .unwrap()
    }

    /// Opens a file or directory in `/proc/<pid>` for reading.
    ///
    /// # Errors
    /// The system's; [`has_ended`] tells whether the process has exited.
    pub fn open(&self, file: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.directory, file, flags, Mode::empty())?)
    }

    /// The content of `/proc/<pid>/cgroup` at the time the process was opened.
    pub fn cgroups(&self) -> &str {
        &self.cgroups
    }

    /// The process's network namespace.
    ///
    /// # Errors
    /// As [`Process::open`].
    pub fn network_namespace(&self) -> io::Result<OwnedFd> {
        self.open("ns/net")
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// The system's.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(pidfd_send_signal(&self.directory, signal)?)
    }
}

/// Checks whether opening or reading a file of a process failed because the process has exited.
pub fn has_ended(error: &io::Error) -> bool {
    let code = error.raw_os_error();
    [Errno::NOENT, Errno::SRCH]
        .iter()
        .any(|ended| code == Some(ended.raw_os_error()))
}

/// Checks whether a process's cgroup table contains the container's cgroup or one below it.
fn belongs(table: &str, container: &str) -> bool {
    let paths = table.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .flat_map(|path| path.split('/'))
        .any(|name| bears(name, container))
}

/// Checks whether `name` is the name of the container's cgroup: the id with the cgroupfs driver,
/// `docker-<id>.scope` with the systemd driver.
pub fn bears(name: &str, container: &str) -> bool {
    let name = name.strip_suffix(SCOPE).unwrap_or(name);
    match name.strip_suffix(container) {
        Some(before) => {
            !container.is_empty() && (before.is_empty() || before.ends_with(['-', '_']))
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command};

    use super::*;

    const ID: &str = "0123456789abcdef";

    #[test]
    fn a_process_is_the_containers_whose_id_its_cgroup_bears() {
        for table in [
            "2:cpu,cpuacct:/docker/0123456789abcdef\n1:name=systemd:/\n",
            "0::/kubepods/podx/0123456789abcdef",
            "0::/kubepods.slice/kubepods-podx.slice/docker-0123456789abcdef.scope",
            // systemd in a container creates cgroups below; the engine may run in a container.
            "0::/system.slice/docker-0123456789abcdef.scope/init.scope",
            "0::/docker/ffff/docker/0123456789abcdef",
            "0::/../../docker/0123456789abcdef",
        ] {
            assert!(belongs(table, ID), "{table}");
        }
        for table in [
            "",
            "0::/\n",
            "0::/docker/ffff",
            "0::/docker/0123456789abcdef0",
            "0::/docker/f0123456789abcdef",
            "0::/user.slice/x0123456789abcdef.scope",
            "0123456789abcdef",
            "1:0123456789abcdef:/",
        ] {
            assert!(!belongs(table, ID), "{table}");
        }
        assert!(!belongs("0::/docker/", ""));
    }

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

    #[test]
    fn a_handle_stands_for_no_later_process() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of_anyone(child.id());
        process.open("stat").unwrap();
        process.signal(Signal::TERM).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process.open("stat").unwrap_err()));
        assert!(has_ended(&process.network_namespace().unwrap_err()));
        assert!(process.signal(Signal::KILL).is_err());
    }
}
