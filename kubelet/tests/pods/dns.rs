//! Hostnames of pods, and their DNS configuration.

use kubelet::kubelet::options::KubeletOptions;
use kubelet_runtime::dns::DnsOptions;
use serde_json::json;

use crate::node::{IMAGE, Node, SECOND, pod, until};

fn options(node: &Node) -> KubeletOptions {
    let file = node.dir.path().join("resolv.conf");
    std::fs::write(&file, "nameserver 192.0.2.53\nsearch example.org\n").unwrap();
    let mut options = node.options();
    options.runtime.dns = DnsOptions {
        resolv_conf: Some(file),
        cluster_dns: vec!["10.96.0.10".parse().unwrap()],
        cluster_domain: "cluster.local".to_owned(),
    };
    options
}

#[tokio::test(start_paused = true)]
async fn the_sandbox_gets_name_servers_and_hostname() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    let spec = json!({
        "hostname": "h", "subdomain": "s", "setHostnameAsFQDN": true,
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
        "hostAliases": [{"ip": "192.0.2.9", "hostnames": ["db", "cache"]}],
    });
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    let config = node.runtime.sandboxes()[0].config.clone();
    assert_eq!(config.hostname, "h.s.default.svc.cluster.local");
    let dns = config.dns_config.unwrap();
    assert_eq!(dns.servers, ["10.96.0.10"]);
    assert_eq!(
        dns.searches,
        [
            "default.svc.cluster.local",
            "svc.cluster.local",
            "cluster.local",
            "example.org"
        ]
    );
    assert_eq!(dns.options, ["ndots:1"]);
    let container = node.runtime.running("c")[0].clone();
    let mounts = container.config.mounts;
    let hosts = mounts.iter().find(|m| m.container_path == "/etc/hosts");
    let hosts = std::fs::read_to_string(&hosts.unwrap().host_path).unwrap();
    assert!(
        hosts.contains("\th.s.default.svc.cluster.local\th\n"),
        "{hosts}"
    );
    assert!(hosts.ends_with("192.0.2.9\tdb\tcache\n"), "{hosts}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_the_kernel_does_not_take_is_told() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    let long = json!({"hostname": "h".repeat(60), "subdomain": "s", "setHostnameAsFQDN": true});
    kubelet.add(pod("web", "u1", long)).await;
    until("the message", 5 * SECOND, || {
        let state = kubelet.container("web").state.unwrap_or_default();
        let waiting = state.waiting.unwrap_or_default();
        waiting
            .message
            .unwrap_or_default()
            .contains("failed to construct FQDN")
    })
    .await;
    assert!(node.runtime.sandboxes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn on_the_nodes_network_names_are_the_nodes() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    kubelet
        .add(pod("web", "u1", json!({"hostNetwork": true})))
        .await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    let config = node.runtime.sandboxes()[0].config.clone();
    assert_eq!(config.hostname, "");
    assert_eq!(config.dns_config.unwrap().servers, ["192.0.2.53"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_of_its_own_hides_the_pods() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    let spec = json!({
        "volumes": [{"name": "v", "emptyDir": {}}],
        "hostnameOverride": "db.example.org",
        "containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "v", "mountPath": "/etc/hosts"}]
        }]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    let mounts = node.runtime.running("c")[0].config.mounts.clone();
    let hosts = mounts.iter().filter(|m| m.container_path == "/etc/hosts");
    assert_eq!(hosts.count(), 1);
    assert_eq!(
        node.runtime.sandboxes()[0].config.hostname,
        "db.example.org"
    );
}
