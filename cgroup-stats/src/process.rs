//! Processes by handles, which never refer to a later process with the same pid.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    process::{Signal, pidfd_send_signal},
};

/// Exceeds any `/proc/<pid>/cgroup`, which has one line per controller.
const MAX_TABLE: u64 = 256 * 1024;
/// The suffix of cgroup names that systemd creates.
const SCOPE: &str = ".scope";
/// The end of what is before the id in the name of a monitor's cgroup, such as `crio-conmon-<id>`.
const MONITOR: &str = "conmon";

/// A process. Its files cannot be opened once it has exited.
#[derive(Debug)]
pub struct Process {
    /// `/proc/<pid>`.
    directory: OwnedFd,
    cgroups: String,
}

impl Process {
    /// Opens the process `pid` of the procfs mounted at `proc`.
    ///
    /// # Errors
    /// The system's; [`has_ended`] tells whether there is no such process.
    pub fn hold(proc: &Path, pid: i64) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, proc.join(pid.to_string()), flags, Mode::empty())?;
        let mut process = Self {
            directory,
            cgroups: String::new(),
        };
        let table = File::from(process.open("cgroup")?);
        table.take(MAX_TABLE).read_to_string(&mut process.cgroups)?;
        Ok(process)
    }

    /// Whether the process was in the container's cgroup, or one below it, when it was opened.
    pub fn is_in(&self, container: &str) -> bool {
        belongs(&self.cgroups, container)
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
        .any(|name| is_cgroup_of(name, container))
}

/// Checks whether `name` is the name of the container's cgroup: the id with the cgroupfs driver,
/// `docker-<id>.scope` and the like with the systemd driver. That of its monitor is another one.
pub fn is_cgroup_of(name: &str, container: &str) -> bool {
    let name = name.strip_suffix(SCOPE).unwrap_or(name);
    match name.strip_suffix(container) {
        Some(_) if container.is_empty() => false,
        Some("") => true,
        Some(before) => match before.strip_suffix(['-', '_']) {
            Some(prefix) => !prefix.ends_with(MONITOR),
            None => false,
        },
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

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
            "0::/kubepods.slice/kubepods-podx.slice/crio-conmon-0123456789abcdef.scope",
            "0::/kubepods/podx/crio-conmon-0123456789abcdef",
            "0123456789abcdef",
            "1:0123456789abcdef:/",
        ] {
            assert!(!belongs(table, ID), "{table}");
        }
        assert!(!belongs("0::/docker/", ""));
    }

    #[test]
    fn a_handle_stands_for_no_later_process() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::hold(Path::new("/proc"), child.id().into()).unwrap();
        process.open("stat").unwrap();
        process.signal(Signal::TERM).unwrap();
        child.wait().unwrap();
        assert!(has_ended(&process.open("stat").unwrap_err()));
        assert!(has_ended(&process.network_namespace().unwrap_err()));
        assert!(process.signal(Signal::KILL).is_err());
    }
}
