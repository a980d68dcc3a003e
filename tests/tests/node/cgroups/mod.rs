//! The cgroups of pods as the kernel has them: limits by QoS class and spec, and their life.

mod cluster;
mod exclusive_cpus;
mod life;
mod limits;
mod rows;

use std::time::Duration;

use anyhow::{Context as _, Result};
use e2e::node::Node;
use serde_json::Value;

/// The time for one step, on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(120);
/// A node with limits of its own: pods get this many processes.
const CONFIGURATION: &str = "podPidsLimit: 500\n";

async fn docker() -> Node {
    let mut node = Node::with_shim().await.unwrap();
    node.start_kubelet_with(CONFIGURATION, &[]).await.unwrap();
    node
}

async fn containerd() -> Node {
    let mut node = Node::with_containerd().await.unwrap();
    node.start_kubelet_with(CONFIGURATION, &[]).await.unwrap();
    node
}

/// The cgroup of a pod, below the node's cgroup root.
pub(crate) fn cgroup_of(pod: &Value) -> Result<String> {
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let class = pod["status"]["qosClass"].as_str().context("no QoS class")?;
    Ok(match class {
        "Guaranteed" => format!("kubepods/pod{uid}"),
        class => format!("kubepods/{}/pod{uid}", class.to_lowercase()),
    })
}

/// The ID of a container in the runtime.
pub(crate) fn container_id<'a>(pod: &'a Value, name: &str) -> Result<&'a str> {
    let statuses = ["containerStatuses", "initContainerStatuses"];
    let id = statuses.iter().find_map(|kind| {
        let all = pod["status"][kind].as_array()?;
        let one = all.iter().find(|one| one["name"] == name)?;
        one["containerID"].as_str()?.split_once("://")
    });
    let (_, id) = id.with_context(|| format!("no container {name}"))?;
    Ok(id)
}

#[tokio::test]
async fn limits_on_docker_through_the_shim() {
    limits::run(&docker().await).await;
}

#[tokio::test]
async fn limits_on_containerd() {
    limits::run(&containerd().await).await;
}

#[tokio::test]
async fn life_on_docker_through_the_shim() {
    life::run(docker().await).await;
}

#[tokio::test]
async fn life_on_containerd() {
    life::run(containerd().await).await;
}

#[tokio::test]
async fn exclusive_cpus_on_docker_through_the_shim() {
    exclusive_cpus::run(Node::with_shim().await.unwrap()).await;
}

#[tokio::test]
async fn exclusive_cpus_on_containerd() {
    exclusive_cpus::run(Node::with_containerd().await.unwrap()).await;
}

#[tokio::test]
async fn pods_of_an_api_server_on_docker_through_the_shim() {
    cluster::run(Node::with_shim().await.unwrap()).await;
}

#[tokio::test]
async fn pods_of_an_api_server_on_containerd() {
    cluster::run(Node::with_containerd().await.unwrap()).await;
}
