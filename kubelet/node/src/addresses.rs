//! The node's addresses: the configured ones, or a detected one.

use std::net::{IpAddr, UdpSocket};

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use kubelet_host::host_ips;

use super::options::NodeOptions;

/// Annotation with the configured addresses, for a cloud controller.
const PROVIDED: &str = "alpha.kubernetes.io/provided-node-ip";

/// Sets the addresses of a node, and for a cloud controller the annotation with the configured
/// ones. `found` is the detected address, used when none is configured.
///
/// # Errors
/// A message: a configured address is not this host's, or none was found.
pub fn set(
    node: &mut Node,
    options: &NodeOptions,
    hostname: &str,
    found: Option<IpAddr>,
) -> Result<(), String> {
    let specified: Vec<IpAddr> = options
        .node_ips
        .iter()
        .copied()
        .filter(|ip| !ip.is_unspecified())
        .collect();
    for ip in &specified {
        validate(*ip).map_err(|why| format!("failed to validate nodeIP: {why}"))?;
    }
    if options.external_cloud_provider && !specified.is_empty() {
        let given: Vec<String> = specified.iter().map(ToString::to_string).collect();
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(PROVIDED.to_owned(), given.join(","));
    } else if let Some(annotations) = &mut node.metadata.annotations {
        annotations.remove(PROVIDED);
    }
    let status = node.status.get_or_insert_default();
    if options.external_cloud_provider {
        // Addresses that the cloud controller has set take precedence.
        if status
            .addresses
            .as_ref()
            .is_some_and(|addresses| !addresses.is_empty())
        {
            return Ok(());
        }
        if options.node_ips.is_empty() {
            status.addresses = Some(vec![address("Hostname", hostname)]);
            return Ok(());
        }
    }
    let ips = match (specified.as_slice(), found) {
        ([], Some(found)) => vec![found],
        ([], None) => {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            return Err(format!("can't get ip address of node {name}"));
        }
        (specified, _) => specified.to_vec(),
    };
    let mut addresses: Vec<NodeAddress> = ips
        .iter()
        .map(|ip| address("InternalIP", &ip.to_string()))
        .collect();
    addresses.push(address("Hostname", hostname));
    status.addresses = Some(addresses);
    Ok(())
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress {
        type_: kind.to_owned(),
        address: address.to_owned(),
    }
}

/// Detects the node's address when none is configured: the hostname if it is an address, one that
/// it resolves to, or the source address towards the default route. Prefers the family of an
/// unspecified `--node-ip`, else IPv4.
pub async fn find(options: &NodeOptions, hostname: &str) -> Option<IpAddr> {
    if options.node_ips.iter().any(|ip| !ip.is_unspecified()) {
        return None;
    }
    if let Ok(ip) = hostname.parse() {
        return Some(ip);
    }
    let wants_ipv6 = options.node_ips.first().is_some_and(IpAddr::is_ipv6);
    let named: Vec<IpAddr> = match tokio::net::lookup_host((hostname, 0)).await {
        Ok(found) => found.map(|address| address.ip()).collect(),
        Err(_) => Vec::new(),
    };
    let mut named = named.into_iter().filter(|ip| validate(*ip).is_ok());
    let first = named.next();
    let preferred = first
        .into_iter()
        .chain(named)
        .find(|ip| ip.is_ipv6() == wants_ipv6);
    preferred.or(first).or_else(|| {
        let given: Vec<IpAddr> = options.node_ips.clone();
        host_ips::node_ips(&given).first().copied()
    })
}

/// Checks that an address is this host's and reachable by others.
fn validate(ip: IpAddr) -> Result<(), String> {
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        return Err("nodeIP can't be loopback address".to_owned());
    }
    if ip.is_multicast() {
        return Err("nodeIP can't be a multicast address".to_owned());
    }
    if is_link_local {
        return Err("nodeIP can't be a link-local unicast address".to_owned());
    }
    // Binding succeeds only to an address of this host.
    match UdpSocket::bind((ip, 0)) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "node IP: \"{ip}\" not found in the host's network interfaces"
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn addresses(node: &Node) -> Vec<(&str, &str)> {
        let status = node.status.as_ref().unwrap();
        let addresses = status.addresses.iter().flatten();
        addresses
            .map(|address| (address.type_.as_str(), address.address.as_str()))
            .collect()
    }

    #[test]
    fn what_is_found_is_internal_and_the_hostname_follows() {
        let mut node = Node::default();
        let found = "192.0.2.7".parse().ok();
        set(&mut node, &NodeOptions::default(), "node-1", found).unwrap();
        assert_eq!(
            addresses(&node),
            [("InternalIP", "192.0.2.7"), ("Hostname", "node-1")]
        );
        let error = set(&mut node, &NodeOptions::default(), "node-1", None).unwrap_err();
        assert!(error.contains("can't get ip address"), "{error}");
    }

    #[test]
    fn addresses_of_others_are_refused() {
        for (ip, part) in [
            ("127.0.0.1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("169.254.1.1", "link-local"),
            ("192.0.2.1", "not found in the host's network interfaces"),
        ] {
            let options = NodeOptions {
                node_ips: vec![ip.parse().unwrap()],
                ..NodeOptions::default()
            };
            let error = set(&mut Node::default(), &options, "node-1", None).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_cloud_controllers_addresses_stay() {
        let options = NodeOptions {
            external_cloud_provider: true,
            ..NodeOptions::default()
        };
        let mut node = Node::default();
        set(&mut node, &options, "node-1", "192.0.2.7".parse().ok()).unwrap();
        assert_eq!(addresses(&node), [("Hostname", "node-1")]);
        let mut node: Node = serde_json::from_value(json!({
            "metadata": {},
            "status": {"addresses": [{"type": "ExternalIP", "address": "198.51.100.1"}]},
        }))
        .unwrap();
        set(&mut node, &options, "node-1", None).unwrap();
        assert_eq!(addresses(&node), [("ExternalIP", "198.51.100.1")]);
    }
}
