//! The addresses of this node as its pods have them.

use std::{
    net::{IpAddr, UdpSocket},
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Node, NodeAddress};
use tokio::sync::watch;

/// The source of the node's addresses. They are looked up on every request: a kubelet may start
/// before its machine has an address, and a cloud controller may correct the node's object.
#[derive(Clone, Debug, Default)]
pub struct HostIps {
    given: Vec<IpAddr>,
    object: Option<watch::Receiver<Option<Arc<Node>>>>,
}

impl HostIps {
    /// Those of the node's object where there is an API server. Until that is known, and
    /// without one, those that were `given` (`--node-ip`), or the one towards the default
    /// route.
    pub fn new(given: Vec<IpAddr>, object: Option<watch::Receiver<Option<Arc<Node>>>>) -> Self {
        Self { given, object }
    }

    /// Those that were given (`--node-ip`).
    pub fn given(&self) -> &[IpAddr] {
        &self.given
    }

    /// The addresses now, at most one of each family, the primary first. Empty while there
    /// is none.
    pub fn now(&self) -> Vec<IpAddr> {
        let object = self.object.as_ref().and_then(|node| node.borrow().clone());
        match object {
            Some(node) => of_node(&node),
            None => node_ips(&self.given),
        }
    }
}

/// The addresses that were given, or else the one that reaches the default
/// route, IPv4 before IPv6. The unspecified address of a family asks for that
/// family's own.
pub fn node_ips(given: &[IpAddr]) -> Vec<IpAddr> {
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

/// The first internal address, or else external one, and the first of the other family.
fn of_node(node: &Node) -> Vec<IpAddr> {
    let status = node.status.as_ref();
    let addresses = status.and_then(|status| status.addresses.as_deref());
    let addresses = addresses.unwrap_or_default();
    let of_type = |type_: &'static str| {
        let addresses = addresses.iter().filter(move |a| a.type_ == type_);
        addresses.filter_map(|NodeAddress { address, .. }| address.parse::<IpAddr>().ok())
    };
    let mut all = of_type("InternalIP").chain(of_type("ExternalIP"));
    let Some(primary) = all.next() else {
        return Vec::new();
    };
    let secondary = all.find(|ip| ip.is_ipv6() != primary.is_ipv6());
    [primary].into_iter().chain(secondary).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(addresses: &[(&str, &str)]) -> Arc<Node> {
        let addresses: Vec<_> = addresses
            .iter()
            .map(|(type_, address)| json!({"type": type_, "address": address}))
            .collect();
        let node = json!({"metadata": {}, "status": {"addresses": addresses}});
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn texts(ips: &[IpAddr]) -> Vec<String> {
        ips.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn internal_addresses_come_first_and_one_of_each_family_counts() {
        for (addresses, expected) in [
            (&[("Hostname", "node")][..], &[][..]),
            (
                &[("ExternalIP", "198.51.100.1"), ("InternalIP", "10.0.0.1")],
                &["10.0.0.1"],
            ),
            (&[("ExternalIP", "198.51.100.1")], &["198.51.100.1"]),
            (
                &[
                    ("InternalIP", "fd00::1"),
                    ("InternalIP", "fd00::2"),
                    ("ExternalIP", "198.51.100.1"),
                ],
                &["fd00::1", "198.51.100.1"],
            ),
        ] {
            let found = of_node(&node(addresses));
            assert_eq!(texts(&found), expected, "{addresses:?}");
        }
    }

    #[test]
    fn what_is_known_later_counts_from_then_on() {
        let (object, known) = watch::channel(None);
        let ips = HostIps::new(vec!["192.0.2.1".parse().unwrap()], Some(known));
        assert_eq!(texts(&ips.now()), ["192.0.2.1"]);
        object.send_replace(Some(node(&[("InternalIP", "10.0.0.1")])));
        assert_eq!(texts(&ips.now()), ["10.0.0.1"]);
        // A cloud controller is yet to say: what is guessed now would stay.
        object.send_replace(Some(node(&[])));
        assert!(ips.now().is_empty());
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
