//! Ports of probes and hooks, by number or by name.

use k8s_openapi::{api::core::v1::Container, apimachinery::pkg::util::intstr::IntOrString};

/// Why a port cannot be determined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The name is neither a port of the container nor a number.
    #[error("the container has no port named {0:?}")]
    NotFound(String),
    /// The number is outside 1 to 65535.
    #[error("invalid port number: {0}")]
    OutOfRange(i64),
}

/// Resolves a port. A name is looked up in the container's ports first, and parsed as a number
/// otherwise.
///
/// # Errors
/// See [`PortError`].
pub fn resolve(port: &IntOrString, container: Option<&Container>) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => match named(name, container) {
            Some(number) => i64::from(number),
            None => name
                .parse()
                .map_err(|_| PortError::NotFound(name.clone()))?,
        },
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(PortError::OutOfRange(number)),
    }
}

fn named(name: &str, container: Option<&Container>) -> Option<i32> {
    let mut ports = container?.ports.iter().flatten();
    let port = ports.find(|port| port.name.as_deref() == Some(name))?;
    Some(port.container_port)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerPort;

    use super::*;

    #[test]
    fn names_come_before_numbers() {
        let named = |name: &str, container_port| ContainerPort {
            name: Some(name.to_owned()),
            container_port,
            ..ContainerPort::default()
        };
        let container = Container {
            ports: Some(vec![named("web", 8080), named("90", 9090)]),
            ..Container::default()
        };
        let resolve = |port| resolve(&port, Some(&container));
        let text = |text: &str| IntOrString::String(text.to_owned());
        assert_eq!(resolve(text("web")), Ok(8080));
        assert_eq!(resolve(text("90")), Ok(9090));
        assert_eq!(resolve(text("80")), Ok(80));
        assert_eq!(resolve(IntOrString::Int(443)), Ok(443));
        assert_eq!(
            resolve(text("db")),
            Err(PortError::NotFound("db".to_owned()))
        );
        for number in [0, -1, 65536] {
            let error = PortError::OutOfRange(number.into());
            assert_eq!(resolve(IntOrString::Int(number)), Err(error));
        }
    }
}
