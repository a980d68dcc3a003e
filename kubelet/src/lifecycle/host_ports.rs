//! Conflicts of host ports.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_pod_spec::restart_rules::is_sidecar;

/// The wildcard address.
const ANY: &str = "0.0.0.0";

/// A host port of a pod.
#[derive(PartialEq, Eq)]
struct HostPort<'a> {
    ip: &'a str,
    protocol: &'a str,
    port: i32,
}

impl HostPort<'_> {
    fn conflicts(&self, other: &Self) -> bool {
        let same_ip = self.ip == ANY || other.ip == ANY || self.ip == other.ip;
        same_ip && self.protocol == other.protocol && self.port == other.port
    }
}

/// Whether none of the pod's host ports conflicts with one of the others.
pub(super) fn are_free(spec: &PodSpec, others: &[Arc<Pod>]) -> bool {
    let mut taken = others
        .iter()
        .filter_map(|other| other.spec.as_ref())
        .flat_map(host_ports);
    let wanted: Vec<HostPort<'_>> = host_ports(spec).collect();
    wanted.is_empty() || !taken.any(|taken| wanted.iter().any(|port| port.conflicts(&taken)))
}

fn host_ports(spec: &PodSpec) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = spec.init_containers.iter().flatten();
    let containers = sidecars
        .filter(|init| is_sidecar(init))
        .chain(&spec.containers);
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports.filter_map(|port| {
        let ip = port.host_ip.as_deref().unwrap_or_default();
        let protocol = port.protocol.as_deref().unwrap_or_default();
        Some(HostPort {
            ip: if ip.is_empty() { ANY } else { ip },
            protocol: if protocol.is_empty() { "TCP" } else { protocol },
            port: port.host_port.filter(|port| *port > 0)?,
        })
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn free(port: Value, taken: Value) -> bool {
        let pod = |port: Value| -> Pod {
            let spec = json!({"spec": {"containers": [{"name": "c", "ports": [port]}]}});
            serde_json::from_value(spec).unwrap()
        };
        are_free(&pod(port).spec.unwrap(), &[Arc::new(pod(taken))])
    }

    #[test]
    fn a_port_is_taken_on_its_address_for_its_protocol() {
        let port = |port: i32, ip: &str, protocol: &str| json!({"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol});
        let taken = || port(80, "", "TCP");
        assert!(!free(port(80, "", ""), taken()));
        assert!(!free(port(80, "10.0.0.1", "TCP"), taken()));
        assert!(free(port(80, "", "UDP"), taken()));
        assert!(free(port(81, "", "TCP"), taken()));
        assert!(free(json!({"containerPort": 80}), taken()));
        assert!(free(
            port(80, "10.0.0.1", "TCP"),
            port(80, "10.0.0.2", "TCP")
        ));
        // The wildcard in either form conflicts with a single address, in both orders.
        for all in ["", "0.0.0.0"] {
            let (all, one) = (port(80, all, ""), port(80, "10.0.0.1", ""));
            assert!(!free(all.clone(), one.clone()));
            assert!(!free(one.clone(), all.clone()));
            assert!(!free(all, taken()));
        }
    }

    #[test]
    fn sidecars_have_ports_and_init_containers_that_end_have_none() {
        let of_init = |restart_policy: Value| -> Pod {
            let init = json!({
                "name": "i", "restartPolicy": restart_policy,
                "ports": [{"containerPort": 1, "hostPort": 80}]
            });
            let spec = json!({"spec": {"initContainers": [init], "containers": [{"name": "c"}]}});
            serde_json::from_value(spec).unwrap()
        };
        let sidecar = of_init(json!("Always"));
        let once = of_init(Value::Null);
        let free = |pod: &Pod, taken: &Pod| {
            are_free(pod.spec.as_ref().unwrap(), &[Arc::new(taken.clone())])
        };
        assert!(!free(&sidecar, &sidecar));
        assert!(free(&sidecar, &once));
        assert!(free(&once, &sidecar));
    }
}
