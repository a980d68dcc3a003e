//! Host ports of a sandbox.

use cri_proto::runtime::v1::{PortMapping, Protocol};

use crate::Error;

/// A host port that is mapped to a port of the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedPort<'a> {
    /// The sandbox's port.
    pub container_port: u16,
    /// The host port.
    pub host_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: &'static str,
    /// The host address; empty for all.
    pub host_ip: &'a str,
}

/// The port mappings that have a host port.
///
/// # Errors
/// `InvalidArgument` naming the invalid port mapping.
pub fn published(mappings: &[PortMapping]) -> Result<Vec<PublishedPort<'_>>, Error> {
    let mut published = Vec::new();
    for (index, mapping) in mappings.iter().enumerate() {
        let check = |field: &str, value: i32, least: u16| match u16::try_from(value) {
            Ok(port) if port >= least => Ok(port),
            _ => Err(Error::invalid(
                format!("config.port_mappings[{index}].{field}"),
                format!("{value}; allowed: {least} to 65535"),
            )),
        };
        let container_port = check("container_port", mapping.container_port, 1)?;
        let host_port = check("host_port", mapping.host_port, 0)?;
        if host_port == 0 {
            continue;
        }
        let protocol = match Protocol::try_from(mapping.protocol) {
            Ok(Protocol::Tcp) => "tcp",
            Ok(Protocol::Udp) => "udp",
            Ok(Protocol::Sctp) => "sctp",
            Err(_) => {
                return Err(Error::invalid(
                    format!("config.port_mappings[{index}].protocol"),
                    format!("{}; allowed: TCP, UDP, SCTP", mapping.protocol),
                ));
            }
        };
        published.push(PublishedPort {
            container_port,
            host_port,
            protocol,
            host_ip: &mapping.host_ip,
        });
    }
    Ok(published)
}
