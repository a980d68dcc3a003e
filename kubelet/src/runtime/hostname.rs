//! Hostname of a pod, and its `/etc/hosts`.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{HostAlias, Pod};

use crate::{config::options::Options, pod::identity};

/// Longest hostname that the kernel takes in one label.
const MAX_LABEL: usize = 63;
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const NODE_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";

/// Hostname and domain of a pod; the domain is empty without a subdomain.
pub fn hostname_and_domain(pod: &Pod, options: &Options) -> (String, String) {
    let spec = pod.spec.as_ref();
    let wanted = spec
        .and_then(|spec| spec.hostname.as_deref())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| identity::name(pod));
    let mut end = wanted.len().min(MAX_LABEL);
    while !wanted.is_char_boundary(end) {
        end -= 1;
    }
    let hostname = wanted[..end].trim_end_matches(['-', '.']).to_owned();
    let subdomain = spec
        .and_then(|spec| spec.subdomain.as_deref())
        .filter(|subdomain| !subdomain.is_empty());
    let domain = subdomain.map_or_else(String::new, |subdomain| {
        let namespace = identity::namespace(pod);
        format!("{subdomain}.{namespace}.svc.{}", options.cluster_domain)
    });
    (hostname, domain)
}

/// `/etc/hosts` of a pod with a network of its own.
pub fn hosts_of_pod(
    ips: &[String],
    hostname: &str,
    domain: &str,
    aliases: Option<&[HostAlias]>,
) -> String {
    let mut hosts = format!(
        "{HEADER}127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n"
    );
    for ip in ips {
        // Writing to a string cannot fail.
        let _ = if domain.is_empty() {
            writeln!(hosts, "{ip}\t{hostname}")
        } else {
            writeln!(hosts, "{ip}\t{hostname}.{domain}\t{hostname}")
        };
    }
    add_aliases(&mut hosts, aliases);
    hosts
}

/// `/etc/hosts` of a pod on the node's network: the node's, and the aliases.
pub fn hosts_of_node(hosts: &str, aliases: Option<&[HostAlias]>) -> String {
    let mut hosts = format!("{NODE_HEADER}{hosts}");
    add_aliases(&mut hosts, aliases);
    hosts
}

fn add_aliases(hosts: &mut String, aliases: Option<&[HostAlias]>) {
    let Some(aliases) = aliases.filter(|aliases| !aliases.is_empty()) else {
        return;
    };
    hosts.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        // Writing to a string cannot fail.
        let _ = writeln!(hosts, "{}\t{names}", alias.ip);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;

    use super::*;

    fn pod(name: &str, spec: PodSpec) -> Pod {
        let mut pod = Pod {
            spec: Some(spec),
            ..Pod::default()
        };
        pod.metadata.name = Some(name.to_owned());
        pod.metadata.namespace = Some("ns".to_owned());
        pod
    }

    #[test]
    fn a_long_name_is_cut_to_a_label() {
        let name = format!("{}-x", "a".repeat(62));
        let (hostname, domain) =
            hostname_and_domain(&pod(&name, PodSpec::default()), &Options::default());
        assert_eq!((hostname.len(), domain.as_str()), (62, ""));
    }

    #[test]
    fn a_subdomain_names_the_pod_in_its_hosts_file() {
        let spec = PodSpec {
            hostname: Some("h".to_owned()),
            subdomain: Some("s".to_owned()),
            ..PodSpec::default()
        };
        let options = Options {
            cluster_domain: "cluster.local".to_owned(),
            ..Options::default()
        };
        let (hostname, domain) = hostname_and_domain(&pod("web", spec), &options);
        let alias = HostAlias {
            ip: "192.0.2.9".to_owned(),
            hostnames: Some(vec!["a".to_owned(), "b".to_owned()]),
        };
        let hosts = hosts_of_pod(&["10.0.0.2".to_owned()], &hostname, &domain, Some(&[alias]));
        assert!(hosts.contains("10.0.0.2\th.s.ns.svc.cluster.local\th\n"));
        assert!(hosts.ends_with("192.0.2.9\ta\tb\n"));
    }
}
