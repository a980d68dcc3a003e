//! Networking by the engine's own bridge, which assigns the sandbox's address and publishes host
//! ports.

use std::collections::HashMap;

use bollard::models::{ContainerCreateBody, HostConfig, PortBinding};
use cri_proto::runtime::v1::{DnsConfig, NamespaceMode, PortMapping};

use super::ports;
use crate::Error;

const HOST: &str = "host";
/// The engine's default network, a bridge on Linux.
const DEFAULT: &str = "default";
/// The engine's value for "no search domains"; an empty list means the host's.
const NO_SEARCH: &str = ".";

/// Sets the sandbox's network in the engine's create request.
///
/// # Errors
/// `InvalidArgument` naming the invalid port mapping.
pub fn apply(
    mode: NamespaceMode,
    hostname: String,
    ports: &[PortMapping],
    dns: Option<DnsConfig>,
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) -> Result<(), Error> {
    if let Some(dns) = dns {
        apply_dns(dns, host);
    }
    if mode == NamespaceMode::Node {
        // With the host network, the sandbox has the node's hostname and all its ports.
        host.network_mode = Some(HOST.into());
        return Ok(());
    }
    host.network_mode = Some(DEFAULT.into());
    body.hostname = Some(hostname).filter(|name| !name.is_empty());
    publish(ports, body, host)
}

/// Sets the DNS configuration; leaves the engine's default if it is empty.
pub(super) fn apply_dns(dns: DnsConfig, host: &mut HostConfig) {
    if dns.servers.is_empty() && dns.searches.is_empty() && dns.options.is_empty() {
        return;
    }
    let search = match dns.searches {
        none if none.is_empty() => vec![NO_SEARCH.to_owned()],
        some => some,
    };
    host.dns = Some(dns.servers);
    host.dns_search = Some(search);
    host.dns_options = Some(dns.options);
}

fn publish(
    mappings: &[PortMapping],
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) -> Result<(), Error> {
    let mut exposed = Vec::new();
    let mut bindings: HashMap<String, Option<Vec<PortBinding>>> = HashMap::new();
    for port in ports::published(mappings)? {
        let key = format!("{}/{}", port.container_port, port.protocol);
        let binding = PortBinding {
            host_ip: Some(port.host_ip.to_owned()),
            host_port: Some(port.host_port.to_string()),
        };
        if !exposed.contains(&key) {
            exposed.push(key.clone());
        }
        bindings
            .entry(key)
            .or_default()
            .get_or_insert_default()
            .push(binding);
    }
    body.exposed_ports = Some(exposed);
    host.port_bindings = Some(bindings);
    Ok(())
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::Protocol;

    use super::*;

    fn apply_to(
        mode: NamespaceMode,
        ports: &[PortMapping],
        dns: Option<DnsConfig>,
    ) -> Result<(ContainerCreateBody, HostConfig), Error> {
        let (mut body, mut host) = Default::default();
        apply(mode, "web".into(), ports, dns, &mut body, &mut host)?;
        Ok((body, host))
    }

    fn mapping(container_port: i32, host_port: i32, protocol: Protocol) -> PortMapping {
        PortMapping {
            protocol: protocol.into(),
            container_port,
            host_port,
            host_ip: "127.0.0.1".into(),
        }
    }

    #[test]
    fn ports_with_a_host_port_are_published() {
        let ports = [
            mapping(80, 8080, Protocol::Tcp),
            mapping(80, 8081, Protocol::Tcp),
            mapping(53, 53, Protocol::Udp),
            mapping(9090, 0, Protocol::Tcp),
        ];
        let (body, host) = apply_to(NamespaceMode::Pod, &ports, None).unwrap();
        assert_eq!(body.exposed_ports.unwrap(), ["80/tcp", "53/udp"]);
        let bindings = host.port_bindings.unwrap();
        let tcp = bindings["80/tcp"].as_ref().unwrap();
        let ports: Vec<_> = tcp.iter().filter_map(|b| b.host_port.as_deref()).collect();
        assert_eq!(ports, ["8080", "8081"]);
        assert!(!bindings.contains_key("9090/tcp"));
    }

    #[test]
    fn a_port_out_of_range_is_named() {
        let ports = [
            mapping(80, 1, Protocol::Tcp),
            mapping(70_000, 1, Protocol::Tcp),
        ];
        let error = apply_to(NamespaceMode::Pod, &ports, None).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("port_mappings[1].container_port"),
            "{error}"
        );
    }

    #[test]
    fn servers_without_search_domains_get_none_of_the_hosts() {
        let dns = DnsConfig {
            servers: vec!["10.96.0.10".into()],
            ..Default::default()
        };
        let (_, host) = apply_to(NamespaceMode::Pod, &[], Some(dns)).unwrap();
        assert_eq!(host.dns_search.unwrap(), ["."]);
    }

    #[test]
    fn the_hosts_network_has_no_ports_of_its_own() {
        let ports = [mapping(80, 8080, Protocol::Tcp)];
        let (body, host) = apply_to(NamespaceMode::Node, &ports, None).unwrap();
        assert_eq!(host.network_mode.as_deref(), Some("host"));
        assert_eq!((body.hostname, host.port_bindings), (None, None));
    }
}
