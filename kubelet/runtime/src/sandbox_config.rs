//! The CRI config of a pod's sandbox.

use std::{collections::BTreeMap, path::Path};

use cri_proto::runtime::v1::{
    DnsConfig, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, PodSandboxConfig,
    PodSandboxMetadata, PortMapping, Protocol, SecurityProfile, UserNamespace,
    security_profile::ProfileType,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kubelet_cri_client::labels;
use kubelet_pod_spec::{directory, identity, sysctl};

use super::{
    hostname::{self, HostnameError},
    resources::{self, Rules},
    security_context,
};

/// The parts of a sandbox's config that are not in the pod.
#[derive(Debug)]
pub struct SandboxConfigInputs<'a> {
    /// Number of earlier sandboxes of the pod.
    pub attempt: u32,
    /// The cgroup of the pod, in which the runtime creates those of the containers. If empty, the
    /// runtime chooses.
    pub cgroup_parent: String,
    /// DNS configuration.
    pub dns: DnsConfig,
    /// User namespace.
    pub user_namespace: UserNamespace,
    /// The options and machine properties that its resources depend on.
    pub rules: Rules<'a>,
    /// Cluster domain; may be empty.
    pub cluster_domain: &'a str,
    /// Parent directory of the pods' log directories.
    pub pod_logs_dir: &'a Path,
}

/// The config of the pod's sandbox.
///
/// # Errors
/// The pod has no valid hostname.
pub fn sandbox_config(
    pod: &Pod,
    spec: &PodSpec,
    parts: SandboxConfigInputs<'_>,
) -> Result<PodSandboxConfig, HostnameError> {
    let host_network = spec.host_network.unwrap_or_default();
    Ok(PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: identity::name(pod).to_owned(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            namespace: identity::namespace(pod).to_owned(),
            attempt: parts.attempt,
        }),
        // On the host network, the pod has the node's hostname.
        hostname: if host_network {
            String::new()
        } else {
            hostname::kernel_hostname(pod, parts.cluster_domain)?
        },
        log_directory: directory::log_dir(parts.pod_logs_dir, pod)
            .to_string_lossy()
            .into_owned(),
        dns_config: Some(parts.dns),
        port_mappings: spec.containers.iter().flat_map(port_mappings).collect(),
        labels: pod_labels(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: parts.cgroup_parent,
            ..linux_config(spec, parts.user_namespace, parts.rules)
        }),
        windows: None,
    })
}

/// The pod's own labels, and those that identify it.
fn pod_labels(pod: &Pod) -> BTreeMap<String, String> {
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.extend(identity_labels(pod));
    labels
}

/// The labels that identify a pod.
pub(super) fn identity_labels(pod: &Pod) -> [(String, String); 3] {
    [
        (labels::POD_NAME, identity::name(pod)),
        (labels::POD_NAMESPACE, identity::namespace(pod)),
        (
            labels::POD_UID,
            pod.metadata.uid.as_deref().unwrap_or_default(),
        ),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

fn port_mappings(container: &Container) -> Vec<PortMapping> {
    let mut mappings: Vec<PortMapping> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for port in container.ports.iter().flatten() {
        // If several ports have the same name, the first one counts.
        match port.name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) if names.contains(&name) => continue,
            name => names.extend(name),
        }
        let protocol = match port.protocol.as_deref() {
            Some("UDP") => Protocol::Udp,
            Some("SCTP") => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        let mapping = PortMapping {
            protocol: protocol.into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        };
        if !mappings.contains(&mapping) {
            mappings.push(mapping);
        }
    }
    mappings
}

fn linux_config(
    spec: &PodSpec,
    user_namespace: UserNamespace,
    rules: Rules<'_>,
) -> LinuxPodSandboxConfig {
    let context = spec.security_context.as_ref();
    let privileged = spec
        .init_containers
        .iter()
        .flatten()
        .chain(&spec.containers)
        .map(|container| container.security_context.as_ref())
        .chain(
            spec.ephemeral_containers
                .iter()
                .flatten()
                .map(|container| container.security_context.as_ref()),
        )
        .flatten()
        .any(|context| context.privileged == Some(true));
    let sysctls = context
        .and_then(|context| context.sysctls.as_ref())
        .into_iter()
        .flatten()
        .map(|own| (sysctl::with_dots(&own.name), own.value.clone()))
        .collect();
    LinuxPodSandboxConfig {
        security_context: Some(LinuxSandboxSecurityContext {
            namespace_options: Some(security_context::namespaces(spec, user_namespace)),
            selinux_options: context
                .and_then(|context| context.se_linux_options.as_ref())
                .map(security_context::selinux),
            run_as_user: security_context::id(context.and_then(|c| c.run_as_user)),
            run_as_group: security_context::id(context.and_then(|c| c.run_as_group)),
            supplemental_groups: security_context::supplemental_groups(context),
            supplemental_groups_policy: security_context::supplemental_groups_policy(context),
            privileged,
            // The pause process works with this profile, whatever the containers need.
            seccomp: Some(SecurityProfile {
                profile_type: ProfileType::RuntimeDefault.into(),
                localhost_ref: String::new(),
            }),
            ..LinuxSandboxSecurityContext::default()
        }),
        sysctls,
        overhead: Some(resources::overhead_resources(spec, rules)),
        resources: Some(resources::sandbox_resources(spec, rules)),
        ..LinuxPodSandboxConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerPort, PodSecurityContext, Sysctl};
    use kubelet_host::machine::Machine;

    use super::*;
    use crate::{resources::ResourceOptions, user_namespace};

    fn pod(spec: PodSpec) -> Pod {
        let mut pod = Pod {
            spec: Some(spec),
            ..Pod::default()
        };
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod.metadata.uid = Some("u".to_owned());
        pod.metadata.labels = Some([("app".to_owned(), "x".to_owned())].into());
        pod
    }

    fn config(spec: PodSpec) -> PodSandboxConfig {
        let pod = pod(spec);
        let parts = SandboxConfigInputs {
            attempt: 3,
            cgroup_parent: "/kubepods/besteffort/podu".to_owned(),
            dns: DnsConfig::default(),
            cluster_domain: "",
            pod_logs_dir: Path::new("/var/log/pods"),
            user_namespace: user_namespace::of_node(),
            rules: Rules {
                options: ResourceOptions::default(),
                machine: &Machine::default(),
            },
        };
        sandbox_config(&pod, pod.spec.as_ref().unwrap(), parts).unwrap()
    }

    #[test]
    fn identity_ports_and_logs() {
        let port = ContainerPort {
            container_port: 80,
            host_port: Some(8080),
            ..ContainerPort::default()
        };
        let config = config(PodSpec {
            containers: vec![Container {
                ports: Some(vec![port.clone(), port]),
                ..Container::default()
            }],
            ..PodSpec::default()
        });
        assert_eq!(config.metadata.unwrap().attempt, 3);
        assert_eq!(config.hostname, "web");
        assert_eq!(config.log_directory, "/var/log/pods/ns_web_u");
        assert_eq!(config.labels[labels::POD_UID], "u");
        assert_eq!(config.labels["app"], "x");
        assert_eq!(config.port_mappings.len(), 1);
        let linux = config.linux.unwrap();
        assert_eq!(linux.cgroup_parent, "/kubepods/besteffort/podu");
        assert_eq!(config.port_mappings[0].host_port, 8080);
    }

    #[test]
    fn on_the_nodes_network_the_hostname_is_the_nodes() {
        let config = config(PodSpec {
            host_network: Some(true),
            ..PodSpec::default()
        });
        assert_eq!(config.hostname, "");
    }

    #[test]
    fn sysctls_are_named_with_dots() {
        let config = config(PodSpec {
            security_context: Some(PodSecurityContext {
                sysctls: Some(vec![Sysctl {
                    name: "net/ipv4/conf/eth0.1/rp_filter".to_owned(),
                    value: "1".to_owned(),
                }]),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        });
        let sysctls = config.linux.unwrap().sysctls;
        assert_eq!(sysctls["net.ipv4.conf.eth0/1.rp_filter"], "1");
    }
}
