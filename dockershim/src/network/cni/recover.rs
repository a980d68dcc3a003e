//! Addresses of sandboxes whose attachments are no longer in the cache, read from their network
//! namespaces. Without addresses, the kubelet would create their pods again.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, atomic::AtomicBool},
};

use cgroup_stats::Process;

use super::{
    Cni,
    attachments::{INTERFACE, SandboxAttachments},
    result,
};
use crate::{model::Sandbox, process::Processes};

/// The kernel's tables of a few interfaces are far smaller.
const TABLE_BYTES: u64 = 256 * 1024;
/// What follows an own address in the table of routes.
const OWN_ADDRESS: &str = "/32 host LOCAL";

impl Cni {
    /// Finds the addresses of a running sandbox without a record of its addresses. Without a cached
    /// attachment, it is detached with the current configuration.
    pub async fn recover(&self, processes: &Arc<Processes>, sandbox: &Sandbox) {
        let (processes, id, pid) = (Arc::clone(processes), sandbox.id().to_owned(), sandbox.pid);
        let read = tokio::task::spawn_blocking(move || {
            let process = processes.open(&id, pid).map_err(io::Error::other)?;
            addresses(&process)
        });
        let read = read.await.map_err(io::Error::other).flatten();
        let (pod, sandbox_id) = (sandbox.pod(), sandbox.id());
        match read {
            Ok(found) if !found.is_empty() => {
                tracing::warn!(
                    pod,
                    sandbox_id,
                    addresses = ?found,
                    "a running sandbox has no record of its network; using the addresses that it has"
                );
                // A cached attachment without a result is kept: the sandbox is detached by it.
                let slot = self.attachments.get(sandbox_id).unwrap_or_else(|| {
                    let slot = SandboxAttachments {
                        own: AtomicBool::new(true),
                        ..SandboxAttachments::default()
                    };
                    let slot = Arc::new(slot);
                    self.attachments.insert(sandbox_id, &slot);
                    slot
                });
                *slot.network.lock() = Some(result::to_status(&found));
            }
            Ok(_) => {
                tracing::warn!(
                    pod,
                    sandbox_id,
                    "a running sandbox has no record of its network, and no unique address"
                );
            }
            Err(error) => {
                tracing::warn!(
                    pod,
                    sandbox_id,
                    %error,
                    "cannot read the addresses of a running sandbox without a record of its network"
                );
            }
        }
    }
}

/// The addresses of the pod's interface in the namespace of a process, IPv4 first.
fn addresses(process: &Process) -> io::Result<Vec<IpAddr>> {
    let routes = table(process, "net/fib_trie")?;
    let mut v4 = own_addresses(&routes).into_iter();
    // The table does not tell interfaces apart: with several addresses, it is not known which is
    // the pod's.
    let v4 = v4.next().filter(|_| v4.next().is_none());
    // There is no such file without IPv6.
    let v6 = table(process, "net/if_inet6").unwrap_or_default();
    let v6 = v6.lines().filter_map(global_address);
    Ok(v4.map(IpAddr::V4).into_iter().chain(v6).collect())
}

fn table(process: &Process, file: &str) -> io::Result<String> {
    let mut text = String::new();
    let file = File::from(process.open(file)?);
    file.take(TABLE_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The addresses in `fib_trie`, without those of the loopback.
fn own_addresses(table: &str) -> BTreeSet<Ipv4Addr> {
    let mut address = None;
    let mut found = BTreeSet::new();
    for line in table.lines() {
        let line = line.trim();
        if let Some(text) = line.strip_prefix("|-- ") {
            address = text.parse::<Ipv4Addr>().ok();
        } else if line == OWN_ADDRESS {
            found.extend(address.filter(|address| !address.is_loopback()));
        }
    }
    found
}

/// The address in a line of `if_inet6`, if it is a global one of the pod's interface.
fn global_address(line: &str) -> Option<IpAddr> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [address, _index, _prefix, scope, _flags, interface] = fields[..] else {
        return None;
    };
    let bits = u128::from_str_radix(address, 16).ok()?;
    let is_it = scope == "00" && interface == INTERFACE;
    is_it.then(|| IpAddr::V6(Ipv6Addr::from(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_told_from_routes() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     \
                     +-- 10.88.0.0/24 2 0 2\n        |-- 10.88.0.0\n           /24 link UNICAST\n        \
                     |-- 10.88.0.7\n           /32 host LOCAL\n        |-- 10.88.0.255\n           \
                     /32 link BROADCAST\nLocal:\n     |-- 10.88.0.7\n        /32 host LOCAL\n     \
                     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(own_addresses(table), [Ipv4Addr::new(10, 88, 0, 7)].into());
        assert_eq!(own_addresses("/32 host LOCAL\n"), [].into());
    }

    #[test]
    fn global_addresses_of_the_pods_interface_are_found() {
        let line = |scope: &str, interface: &str| {
            format!("fd000000000000000000000000000005 02 40 {scope} 80     {interface}")
        };
        let expected: IpAddr = "fd00::5".parse().unwrap();
        assert_eq!(global_address(&line("00", "eth0")), Some(expected));
        assert_eq!(global_address(&line("20", "eth0")), None);
        assert_eq!(global_address(&line("00", "net1")), None);
        assert_eq!(global_address("x"), None);
    }
}
