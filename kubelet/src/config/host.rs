//! What this host says of itself.

use std::{
    fs,
    net::{IpAddr, UdpSocket},
    path::Path,
};

/// The host's name.
pub(super) fn name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// The addresses that were given, or else the one that reaches the default
/// route, IPv4 before IPv6. The unspecified address of a family asks for that
/// family's own.
pub(crate) fn node_ips(given: &[IpAddr]) -> Vec<IpAddr> {
    match given {
        [] => source_address(false)
            .or_else(|| source_address(true))
            .into_iter()
            .collect(),
        [any] if any.is_unspecified() => source_address(any.is_ipv6())
            .or_else(|| source_address(!any.is_ipv6()))
            .into_iter()
            .collect(),
        given => given.to_vec(),
    }
}

/// The address that this host would send from. Nothing is sent: connecting a
/// datagram socket only picks the route. The targets are documentation addresses.
fn source_address(ipv6: bool) -> Option<IpAddr> {
    let (local, target) = if ipv6 {
        ("[::]:0", "[2001:db8::1]:9")
    } else {
        ("0.0.0.0:0", "192.0.2.1:9")
    };
    let socket = UdpSocket::bind(local).ok()?;
    socket.connect(target).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified())
}

/// Whether the unified hierarchy is mounted where everybody expects it.
pub(super) fn is_cgroup_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// The swap areas that are in use, as `/proc/swaps` has them in `text`.
fn swap_areas(text: &str) -> Vec<&str> {
    // The first line is a heading.
    let lines = text.lines().skip(1);
    lines
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// The swap areas that this host uses. A kernel without swap has none.
pub(crate) fn swap() -> Vec<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    swap_areas(&text).into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_is_what_comes_after_the_heading() {
        let heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert_eq!(swap_areas(""), [""; 0]);
        assert_eq!(swap_areas(heading), [""; 0]);
        let on = format!("{heading}/dev/sda2 partition\t8388604\t0\t-2\n");
        assert_eq!(swap_areas(&on), ["/dev/sda2"]);
    }

    #[test]
    fn addresses_that_were_given_are_the_nodes() {
        let given: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1"]
            .iter()
            .map(|ip| ip.parse().unwrap())
            .collect();
        assert_eq!(node_ips(&given), given);
    }

    #[test]
    fn a_found_address_can_be_reached() {
        for given in [
            vec![],
            vec!["0.0.0.0".parse().unwrap()],
            vec!["::".parse().unwrap()],
        ] {
            let found = node_ips(&given);
            assert!(
                found.len() <= 1 && found.iter().all(|ip| !ip.is_unspecified()),
                "{found:?}"
            );
        }
    }
}
