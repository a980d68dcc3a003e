//! Pod specs and their expected status, on a real engine through the shim and on containerd, with
//! the same kubelet and the same table.

mod environment;
mod images;
mod life;
mod logs;
mod network;
mod probes;
mod registries;
mod resources;
mod restart;
mod row;
mod run;
mod security;
mod sidecars;
mod statics;
mod termination;
mod url;
mod volumes;

use e2e::node::Node;

use self::row::Row;

/// Configuration that the rows need in addition to upstream's defaults.
const CONFIGURATION: &str = "clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
maxPods: 500
serializeImagePulls: false
allowedUnsafeSysctls: ['net.core.somaxconn']
containerLogMaxSize: 20Ki
containerLogMonitorInterval: 3s
";

fn table() -> Vec<Row> {
    let rows: Vec<Row> = [
        life::rows(),
        sidecars::rows(),
        termination::rows(),
        probes::rows(),
        environment::rows(),
        network::rows(),
        security::rows(),
        resources::rows(),
        volumes::rows(),
        images::rows(),
        logs::rows(),
        statics::rows(),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut names: Vec<&str> = rows.iter().map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rows.len(), "two rows have one name");
    rows
}

#[tokio::test]
async fn on_docker_through_the_shim() {
    let mut node = Node::with_shim().await.unwrap();
    volumes::install_driver(&node).unwrap();
    let _registries = registries::start(&mut node).await;
    run::run(&node, "docker", table()).await;
}

#[tokio::test]
async fn on_containerd() {
    let mut node = Node::with_containerd().await.unwrap();
    volumes::install_driver(&node).unwrap();
    let _registries = registries::start(&mut node).await;
    run::run(&node, "containerd", table()).await;
}

#[tokio::test]
async fn a_killed_kubelet_changes_nothing_on_docker() {
    let mut node = Node::with_shim().await.unwrap();
    node.start_kubelet_with(CONFIGURATION, &[]).await.unwrap();
    restart::nothing_changes(&mut node).await;
    restart::orphans_go(&mut node).await;
}

#[tokio::test]
async fn a_killed_kubelet_changes_nothing_on_containerd() {
    let mut node = Node::with_containerd().await.unwrap();
    node.start_kubelet_with(CONFIGURATION, &[]).await.unwrap();
    restart::nothing_changes(&mut node).await;
    restart::orphans_go(&mut node).await;
}

#[tokio::test]
async fn pods_of_a_url_on_docker() {
    let mut node = Node::with_shim().await.unwrap();
    url::pods_come_and_go(&mut node).await;
}

#[tokio::test]
async fn pods_of_a_url_on_containerd() {
    let mut node = Node::with_containerd().await.unwrap();
    url::pods_come_and_go(&mut node).await;
}
