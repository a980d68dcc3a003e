//! CRI's network settings of a sandbox as CNI capability arguments. A capability without settings
//! is omitted.

use cri_proto::runtime::v1::{DnsConfig, PodSandboxConfig};
use serde_json::{Map, Value, json};

use crate::{
    Error,
    network::{bandwidth::Limits, ports},
};

/// Host ports of the sandbox.
pub const PORT_MAPPINGS: &str = "portMappings";
/// The ranges of the sandbox's addresses.
pub const IP_RANGES: &str = "ipRanges";
const BANDWIDTH: &str = "bandwidth";
const DNS: &str = "dns";
/// The pod's annotations.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The pod's cgroup.
const CGROUP: &str = "cgroupPath";
/// The burst, in bits: effectively unlimited (2 Gbit).
const BURST: i32 = i32::MAX;

/// The arguments for a sandbox on a node with the pod CIDRs `pod_cidrs`.
///
/// # Errors
/// `InvalidArgument` naming the field.
pub fn of(config: &PodSandboxConfig, pod_cidrs: &[String]) -> Result<Map<String, Value>, Error> {
    let mut arguments = Map::new();
    let published = ports::published(&config.port_mappings)?;
    if !published.is_empty() {
        let mappings = published.iter().map(|port| {
            json!({
                "hostPort": port.host_port,
                "containerPort": port.container_port,
                "protocol": port.protocol,
                "hostIP": port.host_ip,
            })
        });
        arguments.insert(PORT_MAPPINGS.into(), mappings.collect());
    }
    let limits = bandwidth(Limits::of(&config.annotations)?);
    if !limits.is_empty() {
        arguments.insert(BANDWIDTH.into(), limits.into());
    }
    if !pod_cidrs.is_empty() {
        // One set of ranges per address family: the sandbox gets an address from each set.
        let sets = pod_cidrs.iter().map(|cidr| json!([{ "subnet": cidr }]));
        arguments.insert(IP_RANGES.into(), sets.collect());
    }
    if let Some(dns) = config.dns_config.as_ref().and_then(dns) {
        arguments.insert(DNS.into(), dns);
    }
    if !config.annotations.is_empty() {
        arguments.insert(ANNOTATIONS.into(), json!(config.annotations));
    }
    let linux = config.linux.as_ref();
    if let Some(linux) = linux.filter(|linux| !linux.cgroup_parent.is_empty()) {
        arguments.insert(CGROUP.into(), linux.cgroup_parent.clone().into());
    }
    Ok(arguments)
}

fn bandwidth(limits: Limits) -> Map<String, Value> {
    let mut arguments = Map::new();
    for (limit, rate, burst) in [
        (limits.ingress, "ingressRate", "ingressBurst"),
        (limits.egress, "egressRate", "egressBurst"),
    ] {
        if let Some(limit) = limit {
            arguments.insert(rate.into(), limit.into());
            arguments.insert(burst.into(), BURST.into());
        }
    }
    arguments
}

fn dns(config: &DnsConfig) -> Option<Value> {
    let lists = [
        ("servers", &config.servers),
        ("searches", &config.searches),
        ("options", &config.options),
    ];
    let given = lists.into_iter().filter(|(_, list)| !list.is_empty());
    let given: Map<_, _> = given
        .map(|(name, list)| (name.to_owned(), json!(list)))
        .collect();
    Some(given)
        .filter(|given| !given.is_empty())
        .map(Value::Object)
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::{LinuxPodSandboxConfig, PortMapping, Protocol};

    use super::*;

    #[test]
    fn what_is_asked_becomes_arguments_by_capability() {
        let mut config = PodSandboxConfig {
            port_mappings: vec![
                PortMapping {
                    protocol: Protocol::Udp.into(),
                    container_port: 53,
                    host_port: 5353,
                    host_ip: "127.0.0.1".into(),
                },
                PortMapping {
                    container_port: 80,
                    ..Default::default()
                },
            ],
            dns_config: Some(DnsConfig {
                servers: vec!["10.96.0.10".into()],
                ..Default::default()
            }),
            annotations: [("vendor.io/vlan".to_owned(), "7".to_owned())].into(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: "/kubepods/pod1".into(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let cidrs = ["10.1.0.0/24".to_owned(), "fd00::/64".to_owned()];
        let arguments = of(&config, &cidrs).unwrap();
        let expected = json!({
            "portMappings": [{
                "hostPort": 5353, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1",
            }],
            "ipRanges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]],
            "dns": {"servers": ["10.96.0.10"]},
            "io.kubernetes.cri.pod-annotations": {"vendor.io/vlan": "7"},
            "cgroupPath": "/kubepods/pod1",
        });
        assert_eq!(Value::Object(arguments), expected);
        config.port_mappings[0].host_port = 70_000;
        let error = of(&config, &cidrs).unwrap_err().to_string();
        assert!(error.contains("port_mappings[0].host_port"), "{error}");
        assert!(of(&PodSandboxConfig::default(), &[]).unwrap().is_empty());
    }
}
