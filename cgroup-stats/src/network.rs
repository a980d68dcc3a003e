//! Counters of network interfaces, `proc_pid_net(5)`.

/// The interface that every CNI plugin creates for a pod.
const DEFAULT: &str = "eth0";
/// Beginnings of the names of interfaces that are left out, as by cAdvisor: the loopback, and those that
/// runtimes make for each pod.
const LEFT_OUT: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// The counters of one interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// The name in the sandbox.
    pub name: String,
    /// The received traffic.
    pub receive: Direction,
    /// The sent traffic.
    pub transmit: Direction,
}

/// The counters of one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Direction {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub packets: u64,
    /// Packets with errors.
    pub errors: u64,
    /// Dropped packets.
    pub dropped: u64,
}

/// Parses `/proc/<pid>/net/dev`: the interfaces without those of runtimes, the default one first.
pub fn interfaces(table: &str) -> Vec<Interface> {
    let mut found: Vec<_> = table.lines().filter_map(interface).collect();
    found.sort_by_key(|interface| interface.name != DEFAULT);
    found
}

/// Parses `eth0: <bytes> <packets> <errs> <drop> <fifo> <frame> <compressed> <multicast>`, followed
/// by the same fields for sent traffic.
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
    let is_counted = !LEFT_OUT
        .iter()
        .any(|beginning| begins_with(name, beginning));
    is_counted.then(|| Interface {
        name: name.to_owned(),
        receive,
        transmit,
    })
}

fn begins_with(name: &str, beginning: &str) -> bool {
    let start = name.as_bytes().get(..beginning.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(beginning.as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
veth12:       1       1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
Docker0:      1       1    0    0    0     0          0         0        1       1    0    0    0     0       0          0
  net1:       5       6    7    8    0     0          0         0        9      10   11   12    0     0       0          0
  eth0:    1000      20    1    2    3     4          5         6     2000      30    7    8    9    10      11         12
";

    #[test]
    fn the_default_interface_comes_first_and_those_of_runtimes_not_at_all() {
        let found = interfaces(TABLE);
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["eth0", "net1"]);
        assert_eq!(
            found[0].transmit,
            Direction {
                bytes: 2000,
                packets: 30,
                errors: 7,
                dropped: 8,
            }
        );
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(line in ".{0,10}:[ 0-9]{0,80}.{0,5}") {
            let _ = interface(&line);
        }
    }
}
