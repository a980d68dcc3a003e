//! Addresses of pods as their status and environment show them.

use std::net::IpAddr;

/// The first address of the node's primary family, then the first of the other.
pub fn by_family(pod_ips: &[String], node_ips: &[IpAddr]) -> Vec<String> {
    let parsed = || pod_ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok());
    let prefers_v6 = node_ips.first().is_some_and(IpAddr::is_ipv6);
    [prefers_v6, !prefers_v6]
        .into_iter()
        .filter_map(|v6| parsed().find(|ip| ip.is_ipv6() == v6))
        .map(|ip| ip.to_string())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_primary_family_comes_first() {
        let pod = ["10.0.0.1", "fd00:0::1", "10.0.0.2"].map(str::to_owned);
        let of = |node: &str| by_family(&pod, &[node.parse().unwrap()]);
        assert_eq!(of("192.0.2.1"), ["10.0.0.1", "fd00::1"]);
        assert_eq!(of("2001:db8::1"), ["fd00::1", "10.0.0.1"]);
        assert_eq!(by_family(&pod[2..], &[]), ["10.0.0.2"]);
    }
}
