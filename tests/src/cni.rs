//! Nodes whose pod network is set up by Debian's CNI plugins.

use std::{fs, net::IpAddr, time::Duration};

use anyhow::{Result, ensure};
use cri_proto::runtime::v1::{RuntimeCondition, StatusRequest};
use serde_json::{Value, json};

use crate::{cri::Cri, node::Node};

/// The deadline for the shim to notice a change of the configuration directory, and for the kernel
/// to remove a network namespace.
const SOON: Duration = Duration::from_secs(25);
/// The prefix of the addresses of the pods on [`bridge`].
pub const SUBNET: &str = "10.88.0.";

/// A network configuration with a bridge, IP addresses and port mappings. Its files are in the
/// node's directory.
pub fn bridge(node: &Node) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": true,
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": node.path("cni/ipam"),
                    "ranges": [[{"subnet": format!("{SUBNET}0/24")}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
            {"type": "firewall"},
        ],
    })
}

/// Installs a configuration atomically, like network add-ons do.
pub fn configure(node: &Node, config: &Value) -> Result<()> {
    let new = node.path("conflist.new");
    fs::write(&new, config.to_string())?;
    Ok(fs::rename(new, node.path("cni/net.d/10-pods.conflist"))?)
}

/// The runtime's `NetworkReady` condition.
pub async fn network_condition(cri: &Cri) -> Result<RuntimeCondition> {
    let request = StatusRequest { verbose: false };
    let response = cri.runtime.clone().status(request).await?.into_inner();
    let conditions = response.status.unwrap_or_default().conditions;
    let found = conditions.into_iter().find(|c| c.r#type == "NetworkReady");
    Ok(found.unwrap_or_default())
}

/// Waits until the network is ready.
pub async fn await_ready(node: &Node, cri: &Cri) -> Result<()> {
    node.await_until("the network is ready", SOON, async |_| {
        Ok(network_condition(cri).await?.status)
    })
    .await
}

/// A node whose pods are on a bridge.
pub async fn node_with_bridge() -> Result<(Node, Cri)> {
    let node = Node::with_cni().await?;
    configure(&node, &bridge(&node))?;
    let cri = Cri::of(&node).await?;
    await_ready(&node, &cri).await?;
    Ok((node, cri))
}

/// The addresses that host-local has allocated, and the attachments in the CNI cache.
pub fn leases(node: &Node) -> (Vec<String>, Vec<String>) {
    let names = |directory: &str| {
        let entries = fs::read_dir(node.path(directory)).into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .flat_map(|name| name.into_string())
            .collect::<Vec<_>>()
    };
    let mut addresses = names("cni/ipam/pods");
    addresses.retain(|name| name.parse::<IpAddr>().is_ok());
    (addresses, names("cni/cache/results"))
}

/// Fails if any sandbox is still attached to a network.
pub async fn ensure_nothing_is_left(node: &Node) -> Result<()> {
    let left = leases(node);
    ensure!(left == (vec![], vec![]), "{left:?}\n{}", node.shim_log());
    // The kernel removes an unused network namespace asynchronously.
    node.await_until("no link is left", SOON, async |node| {
        let links = node.in_net(&["ip", "-o", "link", "show", "master", "cni0"])?;
        Ok(links.stdout.is_empty())
    })
    .await
}
