//! Counters of a sandbox's network interfaces, from `/proc/<pid>/net/dev` of its first process,
//! which does not require entering the namespace.

use std::{collections::HashMap, fs::File, sync::Arc};

use cgroup_stats::{Interface, KernelFileReader, Process, interfaces};
use cri_proto::runtime::v1::{NetworkInterfaceUsage, NetworkUsage};
use parking_lot::Mutex;

use super::convert::value;
use crate::{model::Id, process::Processes};

/// The first processes of sandboxes, kept open between collections.
#[derive(Debug)]
pub struct NetworkNamespaces {
    processes: Arc<Processes>,
    /// The process of each sandbox, with the pid that it was found by.
    held: Mutex<HashMap<Id, (i64, Arc<Process>)>>,
}

// === impl NetworkNamespaces ===

impl NetworkNamespaces {
    /// Creates an empty set.
    pub fn new(processes: Arc<Processes>) -> Self {
        Self {
            processes,
            held: Mutex::default(),
        }
    }

    /// The interfaces of the sandbox `id`, whose first process is `pid`: without loopback, the
    /// default one first. Empty if the process has exited or the pid belongs to another one.
    pub fn interfaces(&self, reader: &mut KernelFileReader, id: &str, pid: i64) -> Vec<Interface> {
        let Some(process) = self.process(id, pid) else {
            return Vec::new();
        };
        let Ok(file) = process.open("net/dev") else {
            self.held.lock().remove(id);
            return Vec::new();
        };
        interfaces(reader.whole(&File::from(file)).unwrap_or_default())
    }

    fn process(&self, id: &str, pid: i64) -> Option<Arc<Process>> {
        if let Some((of, process)) = self.held.lock().get(id)
            && *of == pid
        {
            return Some(Arc::clone(process));
        }
        let process = Arc::new(self.processes.open(id, pid).ok()?);
        let held = (pid, Arc::clone(&process));
        self.held.lock().insert(id.into(), held);
        Some(process)
    }

    /// Closes all processes that are not to `keep`.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.held.lock().retain(|id, _| keep(id));
    }
}

/// Converts `interfaces` to CRI's format; the first is the default one.
pub fn usage(interfaces: &[Interface], timestamp: i64) -> Option<NetworkUsage> {
    let (default, others) = interfaces.split_first()?;
    Some(NetworkUsage {
        timestamp,
        default_interface: Some(interface_usage(default)),
        interfaces: others.iter().map(interface_usage).collect(),
    })
}

fn interface_usage(interface: &Interface) -> NetworkInterfaceUsage {
    NetworkInterfaceUsage {
        name: interface.name.clone(),
        rx_bytes: value(interface.receive.bytes),
        rx_errors: value(interface.receive.errors),
        tx_bytes: value(interface.transmit.bytes),
        tx_errors: value(interface.transmit.errors),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  net1:       5       6    7    8    0     0          0         0        9      10   11   12    0     0       0          0
  eth0:    1000      20    1    2    3     4          5         6     2000      30    7    8    9    10      11         12
";

    #[test]
    fn the_first_interface_is_the_default_one() {
        let found = interfaces(TABLE);
        let usage = usage(&found, 42).unwrap();
        let default = usage.default_interface.unwrap();
        assert_eq!(
            (default.rx_bytes, default.rx_errors),
            (value(1000), value(1))
        );
        let [other] = &usage.interfaces[..] else {
            panic!("{:?}", usage.interfaces);
        };
        assert_eq!((other.name.as_str(), &other.tx_bytes), ("net1", &value(9)));
    }

    #[test]
    fn a_sandboxs_process_is_held_until_it_is_gone() {
        let proc = tempfile::tempdir().unwrap();
        let make = |pid: &str, table: &str| {
            let directory = proc.path().join(pid);
            std::fs::create_dir_all(directory.join("net")).unwrap();
            std::fs::write(directory.join("net/dev"), TABLE).unwrap();
            std::fs::write(directory.join("cgroup"), table).unwrap();
        };
        make("7", "0::/docker/0123");
        let processes = Processes::in_procfs(proc.path());
        let namespaces = NetworkNamespaces::new(Arc::new(processes));
        let mut reader = KernelFileReader::default();
        let mut count = |pid| namespaces.interfaces(&mut reader, "0123", pid).len();
        assert_eq!(count(7), 2);
        // The pid is reused by a process of another container.
        let moved = proc.path().join("gone");
        std::fs::rename(proc.path().join("7"), &moved).unwrap();
        make("7", "0::/docker/4567");
        assert_eq!(count(7), 2, "it is held");
        std::fs::remove_dir_all(&moved).unwrap();
        assert_eq!(count(7), 0);
        assert_eq!(count(7), 0);
    }
}
