//! The `resolv.conf` of a pod, by its DNS policy.

use cri_proto::runtime::v1::DnsConfig;
use k8s_openapi::api::core::v1::{Pod, PodDNSConfig};

use crate::{config::options::Options, files, pod::identity};

/// Limits of resolvers, as upstream applies them.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_CHARS: usize = 2048;

/// Why a pod cannot be given name servers.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {path:?} for the pod's name servers: {source}")]
pub struct DnsError {
    path: std::path::PathBuf,
    source: std::io::Error,
}

/// The configuration of a pod. `ClusterFirst` is `Default` where no cluster DNS
/// is configured.
///
/// # Errors
/// The node's `resolv.conf` is needed and cannot be read.
pub async fn dns_config(pod: &Pod, options: &Options) -> Result<DnsConfig, DnsError> {
    let Some(spec) = &pod.spec else {
        return Ok(DnsConfig::default());
    };
    let host_network = spec.host_network.unwrap_or_default();
    let cluster = !options.cluster_dns.is_empty();
    let mut config = match spec.dns_policy.as_deref() {
        Some("None") => DnsConfig::default(),
        Some("ClusterFirstWithHostNet") if cluster => {
            cluster_config(pod, options, of_node(options).await?)
        }
        Some("ClusterFirst") | None if cluster && !host_network => {
            cluster_config(pod, options, of_node(options).await?)
        }
        _ => of_node(options).await?,
    };
    if let Some(own) = &spec.dns_config {
        append(&mut config, own);
    }
    limit(&mut config);
    Ok(config)
}

async fn of_node(options: &Options) -> Result<DnsConfig, DnsError> {
    let Some(path) = &options.resolv_conf else {
        // Nothing of the node's, as upstream: not even the engine's default.
        return Ok(DnsConfig {
            servers: vec!["127.0.0.1".to_owned()],
            searches: vec![".".to_owned()],
            options: Vec::new(),
        });
    };
    match files::read_to_string(path).await {
        Ok(text) => Ok(parse(&text)),
        Err(source) => Err(DnsError {
            path: path.clone(),
            source,
        }),
    }
}

fn cluster_config(pod: &Pod, options: &Options, node: DnsConfig) -> DnsConfig {
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
    add_new(
        &mut config.servers,
        own.nameservers.iter().flatten().cloned(),
    );
    add_new(&mut config.searches, own.searches.iter().flatten().cloned());
    for option in own.options.iter().flatten() {
        let name = option.name.as_deref().unwrap_or_default();
        let same_name = |known: &String| known.split(':').next() == Some(name);
        config.options.retain(|known| !same_name(known));
        config.options.push(match &option.value {
            Some(value) if !value.is_empty() => format!("{name}:{value}"),
            _ => name.to_owned(),
        });
    }
}

fn add_new(list: &mut Vec<String>, more: impl IntoIterator<Item = String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

fn limit(config: &mut DnsConfig) {
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    let mut chars = 0;
    config.searches.retain(|search| {
        chars += search.len() + 1;
        chars <= MAX_SEARCH_CHARS + 1
    });
}

/// The text of a `resolv.conf`; of several `search` or `options` lines the last
/// one counts.
fn parse(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search") => {
                config.searches = words
                    .map(|word| match word.strip_suffix('.') {
                        Some(name) if !name.is_empty() => name.to_owned(),
                        _ => word.to_owned(),
                    })
                    .collect();
            }
            Some("options") => config.options = words.map(str::to_owned).collect(),
            _ => {}
        }
    }
    config
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
        let mut options = Options {
            resolv_conf: Some(path),
            ..Options::default()
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
        dns_config(&pod, &options).await.unwrap()
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
    }

    proptest! {
        #[test]
        fn any_file_is_read_within_the_limits(text in "(nameserver |search |options |[ -~]|\n){0,200}") {
            let mut config = parse(&text);
            limit(&mut config);
            prop_assert!(config.servers.len() <= MAX_SERVERS);
            prop_assert!(config.searches.len() <= MAX_SEARCHES);
        }
    }
}
