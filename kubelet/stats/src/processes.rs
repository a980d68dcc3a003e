//! The network interfaces of sandboxes, from the files of a process in each. Processes are kept
//! open between collections, so that only their counters are read again.

use std::{
    collections::HashMap,
    fs::{self, File},
    path::{Path, PathBuf},
};

use cgroup_stats::{Cgroup, Interface, KernelFileReader, Process, interfaces};

/// A cgroup has about a hundred files. A container may have made any number of cgroups below its own.
const MAX_ENTRIES: usize = 1024;

/// Processes in the network namespaces of sandboxes.
#[derive(Debug)]
pub(crate) struct NetworkProcesses {
    proc: PathBuf,
    /// By the ID of the sandbox.
    held: HashMap<String, Process>,
}

impl NetworkProcesses {
    pub(crate) fn new(proc: &Path) -> Self {
        Self {
            proc: proc.to_owned(),
            held: HashMap::new(),
        }
    }

    /// The interfaces of a sandbox, without loopback, the default one first. `members` are the
    /// containers whose processes may be in its namespace, with their cgroups: the sandbox's own,
    /// or the pod's if the runtime runs none for the sandbox.
    pub(crate) fn interfaces<'a>(
        &mut self,
        reader: &mut KernelFileReader,
        sandbox: &str,
        members: impl Iterator<Item = (&'a str, &'a Cgroup)>,
    ) -> Vec<Interface> {
        if let Some(process) = self.held.get(sandbox) {
            if let Some(found) = read(reader, process) {
                return found;
            }
            // It has ended.
            self.held.remove(sandbox);
        }
        for (id, cgroup) in members {
            if let Some(process) = self.find(reader, id, cgroup)
                && let Some(found) = read(reader, &process)
            {
                self.held.insert(sandbox.to_owned(), process);
                return found;
            }
        }
        Vec::new()
    }

    fn find(&self, reader: &mut KernelFileReader, id: &str, cgroup: &Cgroup) -> Option<Process> {
        let directory = cgroup.processes()?;
        let pid = first_process(reader, directory).or_else(|| {
            // crun with systemd puts processes into a cgroup below the container's.
            let below = fs::read_dir(directory).ok()?.flatten().take(MAX_ENTRIES);
            let mut directories =
                below.filter(|entry| entry.file_type().is_ok_and(|it| it.is_dir()));
            directories.find_map(|entry| first_process(reader, &entry.path()))
        })?;
        let process = Process::hold(&self.proc, pid).ok()?;
        // The pid may belong to another process by now.
        process.is_in(id).then_some(process)
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&str) -> bool) {
        self.held.retain(|sandbox, _| keep(sandbox));
    }
}

/// The first process in a cgroup.
fn first_process(reader: &mut KernelFileReader, cgroup: &Path) -> Option<i64> {
    let list = reader.list(cgroup, "cgroup.procs")?;
    list.lines().next()?.parse().ok()
}

fn read(reader: &mut KernelFileReader, process: &Process) -> Option<Vec<Interface>> {
    let file = File::from(process.open("net/dev").ok()?);
    reader.whole(&file).map(interfaces)
}
