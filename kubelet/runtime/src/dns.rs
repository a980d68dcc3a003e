//! The `resolv.conf` of a pod, by its DNS policy.

use std::{
    fmt, io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use cri_proto::runtime::v1::DnsConfig;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_host::files;
use kubelet_pod_spec::identity;
use tracing::{info, warn};

/// DNS options of the kubelet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsOptions {
    /// The `resolv.conf` of pods with `dnsPolicy: Default` (`resolvConf`).
    pub resolv_conf: Option<PathBuf>,
    /// Name servers of the cluster (`clusterDNS`), for `dnsPolicy: ClusterFirst`.
    pub cluster_dns: Vec<IpAddr>,
    /// Domain of the cluster (`clusterDomain`); may be empty.
    pub cluster_domain: String,
}

impl Default for DnsOptions {
    /// The name servers of the host.
    fn default() -> Self {
        Self {
            resolv_conf: Some(PathBuf::from("/etc/resolv.conf")),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
        }
    }
}

/// Limits of resolvers, as applied by upstream.
const MAX_SERVERS: usize = 3;
pub(crate) const MAX_SEARCHES: usize = 32;
pub(crate) const MAX_SEARCH_CHARS: usize = 2048;
/// Longest domain; some resolvers abort on a longer one.
pub(crate) const MAX_DOMAIN: usize = 253;
/// Event message on a node without cluster DNS.
const MISSING_DNS: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod \
    using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

/// Why the DNS configuration of a pod could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The node's `resolv.conf` cannot be read.
    #[error("cannot read {path:?} for the pod's name servers: {source}")]
    Read {
        /// The file (`resolvConf`).
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
    /// A `nameserver` line has no address.
    #[error("{path:?}: a nameserver line has no address")]
    NoAddress {
        /// The file (`resolvConf`).
        path: PathBuf,
    },
}

/// The DNS configuration of a pod. `ClusterFirst` falls back to `Default` if no cluster DNS is
/// configured. Deviations from the pod's spec are recorded as `events`; `None` if they were
/// recorded before.
///
/// # Errors
/// The node's `resolv.conf` is needed and cannot be read.
pub async fn dns_config(
    pod: &Pod,
    options: &DnsOptions,
    node_ips: &[IpAddr],
    events: Option<&EventRecorder>,
) -> Result<DnsConfig, DnsError> {
    let Some(spec) = &pod.spec else {
        return Ok(DnsConfig::default());
    };
    let host_network = spec.host_network.unwrap_or_default();
    let cluster_first = match spec.dns_policy.as_deref() {
        Some("Default" | "None") => false,
        Some("ClusterFirstWithHostNet") => true,
        _ => !host_network,
    };
    let mut config = if spec.dns_policy.as_deref() == Some("None") {
        DnsConfig::default()
    } else if cluster_first && !options.cluster_dns.is_empty() {
        let node = match &options.resolv_conf {
            Some(path) => read(path).await?,
            None => DnsConfig::default(),
        };
        cluster_config(pod, options, node)
    } else {
        if cluster_first {
            info!("no clusterDNS is configured; the pod uses the node's name servers");
            if let Some(events) = events {
                let name = identity::name_with_uid(pod);
                let message = format_args!("pod: {name:?}. {MISSING_DNS}");
                events.warning(Subject::Node, reason::MISSING_CLUSTER_DNS, MISSING_DNS);
                events.warning(Subject::Pod(pod), reason::MISSING_CLUSTER_DNS, message);
            }
        }
        match &options.resolv_conf {
            Some(path) => read(path).await?,
            None => none(node_ips),
        }
    };
    if let Some(own) = &spec.dns_config {
        append(&mut config, own);
    }
    limit(&mut config, pod, events);
    Ok(config)
}

/// The configuration without a `resolvConf`: neither the node's nor the runtime's default. The name
/// servers are loopback addresses, where none listens.
fn none(node_ips: &[IpAddr]) -> DnsConfig {
    let local = |ip: &IpAddr| if ip.is_ipv6() { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = node_ips.iter().map(|ip| local(ip).to_owned()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    DnsConfig {
        servers,
        searches: vec![".".to_owned()],
        options: Vec::new(),
    }
}

/// Reads a `resolv.conf`.
pub(crate) async fn read(path: &Path) -> Result<DnsConfig, DnsError> {
    let failed = |source| DnsError::Read {
        path: path.to_owned(),
        source,
    };
    let text = files::read_lossy(path).await.map_err(failed)?;
    parse(&text).ok_or_else(|| DnsError::NoAddress {
        path: path.to_owned(),
    })
}

fn cluster_config(pod: &Pod, options: &DnsOptions, node: DnsConfig) -> DnsConfig {
    let mut searches = Vec::new();
    if !options.cluster_domain.is_empty() {
        let domain = &options.cluster_domain;
        searches.push(format!("{}.svc.{domain}", identity::namespace(pod)));
        searches.push(format!("svc.{domain}"));
        searches.push(domain.clone());
    }
    add_new(&mut searches, node.searches);
    DnsConfig {
        servers: options
            .cluster_dns
            .iter()
            .map(ToString::to_string)
            .collect(),
        searches,
        options: vec!["ndots:5".to_owned()],
    }
}

fn append(config: &mut DnsConfig, own: &PodDNSConfig) {
    let mut servers = Vec::new();
    let more = own.nameservers.iter().flatten().cloned();
    add_new(&mut servers, config.servers.drain(..).chain(more));
    config.servers = servers;
    let mut searches = Vec::new();
    let more = own.searches.iter().flatten().cloned();
    add_new(&mut searches, config.searches.drain(..).chain(more));
    config.searches = searches;
    for option in own.options.iter().flatten() {
        let name = option.name.as_deref().unwrap_or_default();
        let text = match &option.value {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name.to_owned(),
        };
        set_option(&mut config.options, text);
    }
}

/// Sets an option, and replaces one with the same name.
fn set_option(options: &mut Vec<String>, option: String) {
    let name = |option: &str| option.split(':').next().map(str::to_owned);
    match options.iter_mut().find(|o| name(o) == name(&option)) {
        Some(known) => *known = option,
        None => options.push(option),
    }
}

fn add_new(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

/// Drops what exceeds the limits of resolvers, with a warning.
fn limit(config: &mut DnsConfig, pod: &Pod, events: Option<&EventRecorder>) {
    let tell = |message: fmt::Arguments<'_>| {
        if let Some(events) = events {
            events.warning(Subject::Pod(pod), reason::DNS_CONFIG_FORMING, message);
        }
    };
    if config.servers.len() > MAX_SERVERS {
        config.servers.truncate(MAX_SERVERS);
        warn!(
            servers = config.servers.join(" "),
            "too many name servers; using only these"
        );
        tell(format_args!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the \
             applied nameserver line is: {}",
            config.servers.join(" ")
        ));
    }
    let before = config.searches.len();
    config.searches.truncate(MAX_SEARCHES);
    config.searches.retain(|search| search.len() <= MAX_DOMAIN);
    let mut chars = 0;
    let fitting = config.searches.iter().take_while(|search| {
        chars += search.len() + 1;
        chars <= MAX_SEARCH_CHARS + 1
    });
    let fitting = fitting.count();
    config.searches.truncate(fitting);
    if config.searches.len() < before {
        warn!(
            searches = config.searches.join(" "),
            "too many search domains; using only these"
        );
        tell(format_args!(
            "Search Line limits were exceeded, some search paths have been omitted, the \
             applied search line is: {}",
            config.searches.join(" ")
        ));
    }
}

/// Parses a `resolv.conf`. The last `search` line counts, and the last of several options with the
/// same name. `None` if a `nameserver` line has no address.
fn parse(text: &str) -> Option<DnsConfig> {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.push(words.next()?.to_owned()),
            Some("search") => {
                // A trailing dot does not matter.
                config.searches = words
                    .filter(|word| *word != ".")
                    .map(|word| word.strip_suffix('.').unwrap_or(word).to_owned())
                    .collect();
            }
            Some("options") => {
                for option in words {
                    set_option(&mut config.options, option.to_owned());
                }
            }
            _ => {}
        }
    }
    Some(config)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodSpec;
    use proptest::prelude::*;

    use super::*;

    async fn config_of(spec: PodSpec, cluster: bool) -> DnsConfig {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        std::fs::write(
            &path,
            "# comment\nnameserver 192.0.2.1\nsearch example.org.\noptions rotate\n",
        )
        .unwrap();
        let mut options = DnsOptions {
            resolv_conf: Some(path),
            ..DnsOptions::default()
        };
        if cluster {
            options.cluster_dns = vec!["10.96.0.10".parse().unwrap()];
            options.cluster_domain = "cluster.local".to_owned();
        }
        let mut pod = Pod {
            spec: Some(spec),
            ..Pod::default()
        };
        pod.metadata.namespace = Some("ns".to_owned());
        dns_config(&pod, &options, &[], None).await.unwrap()
    }

    fn policy(policy: &str) -> PodSpec {
        PodSpec {
            dns_policy: Some(policy.to_owned()),
            ..PodSpec::default()
        }
    }

    #[tokio::test]
    async fn the_policy_chooses_the_servers() {
        let node = config_of(policy("Default"), true).await;
        assert_eq!(node.servers, ["192.0.2.1"]);
        assert_eq!(node.searches, ["example.org"]);
        assert_eq!(config_of(policy("ClusterFirst"), false).await, node);

        let cluster = config_of(policy("ClusterFirst"), true).await;
        assert_eq!(cluster.servers, ["10.96.0.10"]);
        assert_eq!(
            cluster.searches,
            [
                "ns.svc.cluster.local",
                "svc.cluster.local",
                "cluster.local",
                "example.org"
            ]
        );
        let mut host = policy("ClusterFirst");
        host.host_network = Some(true);
        assert_eq!(config_of(host, true).await, node);
    }

    #[tokio::test]
    async fn the_pods_own_configuration_is_added() {
        let mut spec = policy("None");
        spec.dns_config = Some(PodDNSConfig {
            nameservers: Some(vec!["192.0.2.7".to_owned(); 2]),
            ..PodDNSConfig::default()
        });
        assert_eq!(config_of(spec, true).await.servers, ["192.0.2.7"]);

        let mut spec = policy("ClusterFirst");
        spec.dns_config = serde_json::from_value(serde_json::json!({
            "nameservers": ["192.0.2.7"],
            "searches": ["example.org", "example.com"],
            "options": [{"name": "ndots", "value": "2"}, {"name": "rotate"}]
        }))
        .unwrap();
        let config = config_of(spec, true).await;
        assert_eq!(config.servers, ["10.96.0.10", "192.0.2.7"]);
        assert_eq!(config.searches[3..], ["example.org", "example.com"]);
        assert_eq!(config.options, ["ndots:2", "rotate"]);
    }

    #[tokio::test]
    async fn a_pod_on_the_nodes_network_may_ask_for_the_clusters_servers() {
        let mut spec = policy("ClusterFirstWithHostNet");
        spec.host_network = Some(true);
        assert_eq!(config_of(spec, true).await.servers, ["10.96.0.10"]);
    }

    #[tokio::test]
    async fn without_a_file_the_servers_are_local() {
        let options = DnsOptions {
            resolv_conf: None,
            ..DnsOptions::default()
        };
        let pod = Pod {
            spec: Some(policy("Default")),
            ..Pod::default()
        };
        let config = dns_config(&pod, &options, &[], None).await.unwrap();
        assert_eq!(
            (&*config.servers, &*config.searches),
            (&["127.0.0.1".to_owned()][..], &[".".to_owned()][..])
        );
        let node_ips = ["2001:db8::1".parse().unwrap()];
        assert_eq!(
            dns_config(&pod, &options, &node_ips, None)
                .await
                .unwrap()
                .servers,
            ["::1"]
        );
    }

    #[test]
    fn what_resolvers_do_not_read_is_cut() {
        let long = "a".repeat(MAX_DOMAIN + 1);
        let mut config = DnsConfig {
            servers: vec!["192.0.2.1".to_owned(); 5],
            searches: vec![long, "example.org".to_owned()],
            options: Vec::new(),
        };
        limit(&mut config, &Pod::default(), None);
        assert_eq!(config.servers.len(), 3);
        assert_eq!(config.searches, ["example.org"]);
        let mut config = DnsConfig {
            searches: vec!["b".repeat(100); 32],
            ..DnsConfig::default()
        };
        limit(&mut config, &Pod::default(), None);
        assert_eq!(
            config.searches.len(),
            20,
            "20 * 101 - 1 characters fit in 2048"
        );
    }

    #[test]
    fn a_file_is_read_as_resolvers_read_it() {
        let text = "search a.\nsearch b. . c\nnameserver 192.0.2.1 # x\noptions ndots:1 rotate\n options ndots:2\n;x\n";
        let config = parse(text).unwrap();
        assert_eq!(config.searches, ["b", "c"]);
        assert_eq!(config.servers, ["192.0.2.1"]);
        assert_eq!(config.options, ["ndots:2", "rotate"]);
        assert_eq!(parse("nameserver\n"), None);
    }

    proptest! {
        #[test]
        fn any_file_is_read_within_the_limits(text in "(nameserver |search |options |[ -~]|\n){0,200}") {
            let Some(mut config) = parse(&text) else {
                return Ok(());
            };
            limit(&mut config, &Pod::default(), None);
            prop_assert!(config.servers.len() <= MAX_SERVERS);
            prop_assert!(config.searches.len() <= MAX_SEARCHES);
        }
    }
}
