//! Counters of a sandbox's network interfaces, out of `/proc/<pid>/net/dev` of its first
//! process: no namespace has to be entered for them.

use std::path::Path;

use cri_proto::runtime::v1::{NetworkInterfaceUsage, NetworkUsage};

use super::{convert::value, usage::Reader};

/// The interface that every network plugin gives a pod.
const DEFAULT: &str = "eth0";
const LOOPBACK: &str = "lo";

/// Counters of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the sandbox.
    pub name: String,
    /// What came in.
    pub receive: Direction,
    /// What went out.
    pub transmit: Direction,
}

/// Counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Direction {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets that were broken.
    pub errors: u64,
    /// Packets that were dropped.
    pub dropped: u64,
}

/// The interfaces in the network namespace of process `pid` without its loopback, the
/// default one first. Empty when the process is gone.
pub fn interfaces(reader: &mut Reader, proc: &Path, pid: i64) -> Vec<Interface> {
    if pid <= 0 {
        return Vec::new();
    }
    let directory = proc.join(pid.to_string());
    let table = reader.list(&directory, "net/dev").unwrap_or_default();
    let mut found: Vec<_> = table.lines().filter_map(interface).collect();
    found.sort_by_key(|interface| interface.name != DEFAULT);
    found
}

/// `eth0: <bytes> <packets> <errs> <drop> <fifo> <frame> <compressed> <multicast>`, and
/// the same again for what went out.
fn interface(line: &str) -> Option<Interface> {
    let (name, counters) = line.split_once(':')?;
    let name = name.trim();
    let numbers: Vec<u64> = counters
        .split_ascii_whitespace()
        .map_while(|number| number.parse().ok())
        .collect();
    let direction = |first: usize| match numbers.get(first..first + 4)? {
        &[bytes, packets, errors, dropped] => Some(Direction {
            bytes,
            packets,
            errors,
            dropped,
        }),
        _ => None,
    };
    let (receive, transmit) = (direction(0)?, direction(8)?);
    (name != LOOPBACK).then(|| Interface {
        name: name.to_owned(),
        receive,
        transmit,
    })
}

/// `interfaces` in CRI's terms; the first is the default one.
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
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  net1:       5       6    7    8    0     0          0         0        9      10   11   12    0     0       0          0
  eth0:    1000      20    1    2    3     4          5         6     2000      30    7    8    9    10      11         12
";

    #[test]
    fn the_default_interface_comes_first_and_the_loopback_not_at_all() {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc.path().join("7/net")).unwrap();
        std::fs::write(proc.path().join("7/net/dev"), TABLE).unwrap();
        let mut reader = Reader::default();
        let found = interfaces(&mut reader, proc.path(), 7);
        assert_eq!(found[0].name, "eth0");
        assert_eq!(
            found[0].transmit,
            Direction {
                bytes: 2000,
                packets: 30,
                errors: 7,
                dropped: 8,
            }
        );
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
        assert_eq!(interfaces(&mut reader, proc.path(), 8), []);
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(line in ".{0,10}:[ 0-9]{0,80}.{0,5}") {
            let _ = interface(&line);
        }
    }
}
