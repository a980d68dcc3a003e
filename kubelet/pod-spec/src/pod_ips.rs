//! Pod addresses in status and environment variables.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodIP;

/// The first address of the node's primary family, then the first of the other family. The primary
/// family is that of the first configured node address, or IPv4 if none is configured.
pub fn by_family(pod_ips: &[String], node_ips: &[IpAddr]) -> Vec<String> {
    let parsed = || pod_ips.iter().filter_map(|ip| ip.parse::<IpAddr>().ok());
    let prefers_v6 = node_ips.first().is_some_and(IpAddr::is_ipv6);
    [prefers_v6, !prefers_v6]
        .into_iter()
        .filter_map(|v6| parsed().find(|ip| ip.is_ipv6() == v6))
        .map(|ip| ip.to_string())
        .collect()
}

/// The addresses of a pod on the host network whose status had the addresses `old`. Reported
/// addresses stay; an address of the second family is added once the node has one.
pub fn on_host_network(old: Option<&Vec<PodIP>>, host_ips: &[IpAddr]) -> Vec<String> {
    let mut ips: Vec<String> = old.into_iter().flatten().map(|ip| ip.ip.clone()).collect();
    if ips.is_empty() {
        ips.extend(host_ips.first().map(ToString::to_string));
    }
    if let ([only], [_, secondary]) = (ips.as_slice(), host_ips)
        && only.contains(':') != secondary.is_ipv6()
    {
        ips.push(secondary.to_string());
    }
    ips
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

    #[test]
    fn what_was_told_of_a_pod_on_the_nodes_network_stays() {
        let of = |old: &[&str], node: &[&str]| {
            let old = old.iter().map(|ip| PodIP {
                ip: (*ip).to_owned(),
            });
            let old: Vec<PodIP> = old.collect();
            let node: Vec<IpAddr> = node.iter().map(|ip| ip.parse().unwrap()).collect();
            on_host_network(Some(&old), &node)
        };
        assert_eq!(of(&[], &[]), Vec::<String>::new());
        assert_eq!(of(&[], &["192.0.2.1"]), ["192.0.2.1"]);
        assert_eq!(of(&["192.0.2.1"], &["192.0.2.9"]), ["192.0.2.1"]);
        let both = ["192.0.2.1", "2001:db8::1"];
        assert_eq!(of(&[], &both), both);
        assert_eq!(of(&["192.0.2.7"], &both), ["192.0.2.7", "2001:db8::1"]);
        assert_eq!(of(&["2001:db8::7"], &both), ["2001:db8::7"]);
    }
}
