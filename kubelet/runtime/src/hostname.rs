//! Hostname and `/etc/hosts` of a pod.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::{HostAlias, Pod};
use kubelet_pod_spec::identity;

/// Longest hostname of a pod without its domain, as upstream.
const MAX_LABEL: usize = 63;
/// Longest hostname that the kernel accepts.
const MAX_FQDN: usize = 64;
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const NODE_HEADER: &str = "# Kubernetes-managed hosts file (host network).\n";

/// Why a pod has no valid hostname.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HostnameError {
    /// Nothing valid is left of the name after truncation.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    Invalid {
        /// Name of the pod.
        pod: String,
        /// The requested hostname.
        hostname: String,
    },
    /// `setHostnameAsFQDN` is set, and the FQDN is too long for the kernel.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long ({MAX_FQDN} characters is the max, {} characters requested)",
        fqdn.len()
    )]
    TooLong {
        /// The FQDN.
        fqdn: String,
    },
}

/// Hostname and domain of a pod. The domain is empty if the pod has no subdomain or overrides its
/// hostname.
///
/// # Errors
/// [`HostnameError::Invalid`].
pub fn hostname_and_domain(
    pod: &Pod,
    cluster_domain: &str,
) -> Result<(String, String), HostnameError> {
    let spec = pod.spec.as_ref();
    if let Some(hostname) = spec.and_then(|spec| spec.hostname_override.as_deref()) {
        return Ok((cut(pod, hostname)?, String::new()));
    }
    let hostname = spec
        .and_then(|spec| spec.hostname.as_deref())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| identity::name(pod));
    let subdomain = spec
        .and_then(|spec| spec.subdomain.as_deref())
        .filter(|subdomain| !subdomain.is_empty());
    let domain = subdomain.map_or_else(String::new, |subdomain| {
        let namespace = identity::namespace(pod);
        format!("{subdomain}.{namespace}.svc.{cluster_domain}")
    });
    Ok((cut(pod, hostname)?, domain))
}

/// The hostname that processes of the pod see: the FQDN with `setHostnameAsFQDN`, else the hostname
/// without its domain.
///
/// # Errors
/// See [`HostnameError`].
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, HostnameError> {
    let (hostname, domain) = hostname_and_domain(pod, cluster_domain)?;
    let spec = pod.spec.as_ref();
    let whole = spec.and_then(|spec| spec.set_hostname_as_fqdn) == Some(true);
    if !whole || domain.is_empty() {
        return Ok(hostname);
    }
    let fqdn = format!("{hostname}.{domain}");
    if fqdn.len() > MAX_FQDN {
        return Err(HostnameError::TooLong { fqdn });
    }
    Ok(fqdn)
}

/// Truncates a name to the longest hostname.
fn cut(pod: &Pod, wanted: &str) -> Result<String, HostnameError> {
    if wanted.len() <= MAX_LABEL {
        return Ok(wanted.to_owned());
    }
    let mut end = MAX_LABEL;
    while !wanted.is_char_boundary(end) {
        end -= 1;
    }
    let hostname = wanted[..end].trim_end_matches(['-', '.']);
    if hostname.is_empty() {
        return Err(HostnameError::Invalid {
            pod: identity::name(pod).to_owned(),
            hostname: wanted.to_owned(),
        });
    }
    Ok(hostname.to_owned())
}

/// `/etc/hosts` of a pod with its own network.
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

/// `/etc/hosts` of a pod on the host network: the node's file with the pod's aliases.
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
        let (hostname, domain) = hostname_and_domain(&pod(&name, PodSpec::default()), "").unwrap();
        assert_eq!((hostname.len(), domain.as_str()), (62, ""));
    }

    #[test]
    fn a_subdomain_names_the_pod_in_its_hosts_file() {
        let spec = PodSpec {
            hostname: Some("h".to_owned()),
            subdomain: Some("s".to_owned()),
            ..PodSpec::default()
        };
        let (hostname, domain) = hostname_and_domain(&pod("web", spec), "cluster.local").unwrap();
        let alias = HostAlias {
            ip: "192.0.2.9".to_owned(),
            hostnames: Some(vec!["a".to_owned(), "b".to_owned()]),
        };
        let hosts = hosts_of_pod(&["10.0.0.2".to_owned()], &hostname, &domain, Some(&[alias]));
        assert!(hosts.contains("10.0.0.2\th.s.ns.svc.cluster.local\th\n"));
        assert!(hosts.ends_with("192.0.2.9\ta\tb\n"));
    }

    #[test]
    fn the_whole_name_is_the_kernels_where_it_fits() {
        let named = |hostname: &str, subdomain: Option<&str>| {
            let spec = PodSpec {
                hostname: Some(hostname.to_owned()),
                subdomain: subdomain.map(str::to_owned),
                set_hostname_as_fqdn: Some(true),
                ..PodSpec::default()
            };
            kernel_hostname(&pod("web", spec), "cluster.local")
        };
        assert_eq!(named("h", None).unwrap(), "h");
        assert_eq!(named("h", Some("s")).unwrap(), "h.s.ns.svc.cluster.local");
        let error = named(&"h".repeat(45), Some("s")).unwrap_err().to_string();
        assert!(
            error.contains("is too long (64 characters is the max, 68"),
            "{error}"
        );
    }

    #[test]
    fn an_overridden_hostname_has_no_domain() {
        let spec = PodSpec {
            hostname: Some("h".to_owned()),
            subdomain: Some("s".to_owned()),
            hostname_override: Some("db.example.org".to_owned()),
            ..PodSpec::default()
        };
        let named = hostname_and_domain(&pod("web", spec), "").unwrap();
        assert_eq!(named, ("db.example.org".to_owned(), String::new()));
    }
}
