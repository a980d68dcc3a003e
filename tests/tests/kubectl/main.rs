//! What the real `kubectl` shows and does with a node of a cluster: on Docker through the
//! shim, and on containerd.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod changes;
mod reading;
mod row;
mod streams;

use e2e::{cluster::Cluster, node::Node};

use crate::row::Row;

fn table() -> Vec<Row> {
    [reading::rows(), streams::rows(), changes::rows()]
        .into_iter()
        .flatten()
        .collect()
}

#[tokio::test]
async fn on_docker_through_the_shim() {
    let mut node = Node::with_shim().await.unwrap();
    // Its streaming server is where the kubelet is.
    node.stop_shim().unwrap();
    node.start_shim_beside_the_engine(&[]).await.unwrap();
    row::run(&Cluster::of(node).await.unwrap(), table()).await;
}

#[tokio::test]
async fn on_containerd() {
    let node = Node::with_containerd().await.unwrap();
    row::run(&Cluster::of(node).await.unwrap(), table()).await;
}
