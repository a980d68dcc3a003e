//! The real `kubectl` with a node of a cluster: on Docker through the shim, and on containerd; with
//! the tests' API server, and with Kubernetes' own servers if the machine has them.

mod changes;
mod reading;
mod row;
mod streams;

use e2e::{cluster::Cluster, control_plane::Programs, node::Node};
use test_run::skips;

async fn run_table(cluster: Cluster) {
    let mut rows = [reading::rows(), streams::rows(), changes::rows()].concat();
    if cluster.control_plane.has_metrics() {
        rows.push(reading::usage());
    } else {
        let reason = "metrics.k8s.io needs a metrics server, which is missing";
        skips::skip("kubectl: kubectl top by Kubernetes' own servers", reason);
    }
    row::run(&cluster, rows).await;
}

async fn docker() -> Node {
    Node::with_shim_beside_the_engine().await.unwrap()
}

async fn containerd() -> Node {
    Node::with_containerd().await.unwrap()
}

async fn run_by_kubernetes(test: &str, node: impl AsyncFnOnce() -> Node) {
    let Some(programs) = Programs::at_hand(&format!("kubectl::{test}")).unwrap() else {
        return;
    };
    let cluster = Cluster::by_kubernetes(node().await, &programs).await;
    run_table(cluster.unwrap()).await;
}

#[tokio::test]
async fn on_docker_through_the_shim() {
    run_table(Cluster::of(docker().await).await.unwrap()).await;
}

#[tokio::test]
async fn on_docker_through_the_shim_by_kubernetes_own_servers() {
    run_by_kubernetes(
        "on_docker_through_the_shim_by_kubernetes_own_servers",
        docker,
    )
    .await;
}

#[tokio::test]
async fn on_containerd() {
    run_table(Cluster::of(containerd().await).await.unwrap()).await;
}

#[tokio::test]
async fn on_containerd_by_kubernetes_own_servers() {
    run_by_kubernetes("on_containerd_by_kubernetes_own_servers", containerd).await;
}
