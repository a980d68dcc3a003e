//! Environment variables of services.

use std::{collections::BTreeMap, net::Ipv6Addr, sync::Arc};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use kubelet_api_client::objects::{ObjectError, Objects};

/// Namespace and name of the API server's service, which every pod gets variables of.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// The variables for a pod in `namespace`: those of the API server, and if `links` is set, those of
/// all services in the namespace.
///
/// # Errors
/// The services could not be listed.
pub(super) async fn variables(
    objects: &dyn Objects,
    namespace: &str,
    links: bool,
) -> Result<BTreeMap<String, String>, ObjectError> {
    let services = objects.services_for(namespace).await?;
    Ok(of_services(&services, namespace, links))
}

fn of_services(
    services: &[Arc<Service>],
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, &Arc<Service>> = BTreeMap::new();
    // A headless service has no address, and does not replace one that has.
    let services = services.iter();
    for service in services.filter(|service| address(service).is_some()) {
        let own = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        if (own, name) == API_SERVER {
            chosen.entry(name).or_insert(service);
        } else if own == namespace && links {
            chosen.insert(name, service);
        }
    }
    chosen
        .into_iter()
        .flat_map(|(name, service)| of_service(name, service))
        .collect()
}

fn address(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!matches!(ip, "" | "None")).then_some(ip)
}

fn of_service(name: &str, service: &Service) -> Vec<(String, String)> {
    let Some(ip) = address(service) else {
        return Vec::new();
    };
    let spec = service.spec.as_ref();
    let prefix = variable_name(name);
    let mut variables = vec![(format!("{prefix}_SERVICE_HOST"), ip.to_owned())];
    let ports = spec.and_then(|spec| spec.ports.as_deref());
    for (index, port) in ports.unwrap_or_default().iter().enumerate() {
        let number = port.port.to_string();
        let service_port = format!("{prefix}_SERVICE_PORT");
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = variable_name(name);
            variables.push((format!("{service_port}_{name}"), number.clone()));
        }
        let url = url(ip, port);
        if index == 0 {
            variables.push((service_port, number));
            variables.push((format!("{prefix}_PORT"), url.clone()));
        }
        variables.extend(link(&prefix, ip, port, url));
    }
    variables
}

/// The variables of a port in the format of Docker links.
fn link(prefix: &str, ip: &str, port: &ServicePort, url: String) -> [(String, String); 4] {
    let protocol = protocol(port);
    let prefix = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
    [
        (format!("{prefix}_PROTO"), protocol.to_lowercase()),
        (format!("{prefix}_PORT"), port.port.to_string()),
        (format!("{prefix}_ADDR"), ip.to_owned()),
        (prefix, url),
    ]
}

fn url(ip: &str, port: &ServicePort) -> String {
    let protocol = protocol(port).to_lowercase();
    let number = port.port;
    if ip.parse::<Ipv6Addr>().is_ok() {
        format!("{protocol}://[{ip}]:{number}")
    } else {
        format!("{protocol}://{ip}:{number}")
    }
}

fn protocol(port: &ServicePort) -> &str {
    match port.protocol.as_deref() {
        None | Some("") => "TCP",
        Some(protocol) => protocol,
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(json: serde_json::Value) -> Service {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_service_is_found_by_host_and_ports() {
        let service = service(json!({"spec": {"clusterIP": "10.0.0.1", "ports": [
            {"name": "http-alt", "port": 8080, "protocol": "TCP"},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]}}));
        let variables: BTreeMap<_, _> = of_service("my-web", &service).into_iter().collect();
        let expected = [
            ("MY_WEB_SERVICE_HOST", "10.0.0.1"),
            ("MY_WEB_SERVICE_PORT", "8080"),
            ("MY_WEB_SERVICE_PORT_HTTP_ALT", "8080"),
            ("MY_WEB_SERVICE_PORT_DNS", "53"),
            ("MY_WEB_PORT", "tcp://10.0.0.1:8080"),
            ("MY_WEB_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
            ("MY_WEB_PORT_8080_TCP_PROTO", "tcp"),
            ("MY_WEB_PORT_8080_TCP_PORT", "8080"),
            ("MY_WEB_PORT_8080_TCP_ADDR", "10.0.0.1"),
            ("MY_WEB_PORT_53_UDP", "udp://10.0.0.1:53"),
            ("MY_WEB_PORT_53_UDP_PROTO", "udp"),
            ("MY_WEB_PORT_53_UDP_PORT", "53"),
            ("MY_WEB_PORT_53_UDP_ADDR", "10.0.0.1"),
        ];
        let expected: BTreeMap<_, _> = expected
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(variables, expected);
    }

    #[test]
    fn a_headless_service_does_not_hide_the_api_server() {
        let named = |namespace: &str, ip: &str| {
            Arc::new(service(json!({
                "metadata": {"name": "kubernetes", "namespace": namespace},
                "spec": {"clusterIP": ip, "ports": [{"port": 443}]}
            })))
        };
        let server = named("default", "10.0.0.1");
        let host = |own: &str| {
            let services = [named("shop", own), Arc::clone(&server)];
            let variables = of_services(&services, "shop", true);
            variables.get("KUBERNETES_SERVICE_HOST").cloned()
        };
        assert_eq!(host("None").as_deref(), Some("10.0.0.1"));
        assert_eq!(host("10.0.0.9").as_deref(), Some("10.0.0.9"));
    }

    #[test]
    fn addresses_of_ipv6_are_in_brackets_and_headless_services_have_none() {
        let port = json!([{"port": 1}]);
        let v6 = service(json!({"spec": {"clusterIP": "fd00::1", "ports": port}}));
        let variables = of_service("a", &v6);
        let url = variables.iter().find(|(name, _)| name == "A_PORT").unwrap();
        assert_eq!(url.1, "tcp://[fd00::1]:1");
        let headless = service(json!({"spec": {"clusterIP": "None", "ports": port}}));
        assert!(of_service("a", &headless).is_empty());
    }
}
