//! Pods that take all memory or all processes that they can get: they reach their own limits, and
//! neither the node nor other pods are affected.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use e2e::{cluster::Cluster, images, node::Node};
use serde_json::{Value, json};

/// The time for one step, on a busy machine.
const SOON: Duration = Duration::from_secs(120);
/// Most processes of a pod.
const PROCESSES: u64 = 64;
const HEALTH: &str = "/api/v1/nodes/node/proxy/healthz";
const EVENTS: &str = "/api/v1/namespaces/default/events";

/// Never ends by itself, and cannot be restarted without a trace.
const SLEEP: &[&str] = &["sleep", "1000"];

async fn cluster(node: Result<Node>) -> Cluster {
    let flags = [format!("--pod-max-pids={PROCESSES}")];
    Cluster::with_flags(node.unwrap(), &flags).await.unwrap()
}

/// Writes the manifest of a pod that is not restarted, and may use 32 MiB.
fn write(on: &Cluster, name: &str, command: &[&str]) -> Result<()> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "hostNetwork": true, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": images::BUSYBOX, "command": command,
                "resources": {"limits": {"memory": "32Mi"}},
            }],
        },
    });
    on.node
        .write_manifest(&format!("{name}.json"), &pod.to_string())
}

/// A neighbour that was started before still runs, and another pod can be started.
async fn others_run(on: &Cluster) -> Result<()> {
    let health = on.control_plane.get(HEALTH).await?;
    ensure!(health == "ok", "the kubelet is {health}");
    write(on, "after", SLEEP)?;
    on.node.await_running("after", SOON).await?;
    let before = on.node.await_running("before", SOON).await?;
    let restarts = &before["status"]["containerStatuses"][0]["restartCount"];
    ensure!(restarts == 0, "the neighbour was restarted: {before:#}");
    Ok(())
}

async fn memory(on: Cluster) -> Result<()> {
    write(&on, "before", SLEEP)?;
    on.node.await_running("before", SOON).await?;
    write(&on, "greedy", &["busybox", "tail", "/dev/zero"])?;
    let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
    let greedy = on.node.await_pod("greedy", SOON, failed).await?;
    let ended = &greedy["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(
        ended["reason"] == "OOMKilled" && ended["exitCode"] == 137,
        "the end is {ended:#}"
    );
    others_run(&on).await?;
    // Events are sent in order, so those of the kill precede these.
    let started = async |_: &Node| {
        let events = on.control_plane.get(EVENTS).await?;
        let events = events["items"].as_array().context("no events")?;
        let system: Vec<_> = events
            .iter()
            .filter(|e| e["reason"] == "SystemOOM")
            .collect();
        ensure!(
            system.is_empty(),
            "the node is not out of memory: {system:#?}"
        );
        let of_after = |event: &&Value| event["involvedObject"]["name"] == "after-node";
        let mut of_after = events.iter().filter(of_after);
        Ok(of_after.any(|event| event["reason"] == "Started"))
    };
    on.node
        .await_until("the event of the last start", SOON, started)
        .await
}

async fn processes(on: Cluster) -> Result<()> {
    write(&on, "before", SLEEP)?;
    on.node.await_running("before", SOON).await?;
    // The shell in the background ends when the kernel refuses a process; what it started stays.
    let bomb = "(while :; do sleep 300 & done) & exec sleep 300";
    write(&on, "bomb", &["sh", "-c", bomb])?;
    let pod = on.node.await_running("bomb", SOON).await?;
    let uid = pod["metadata"]["uid"].as_str().context("no UID")?;
    let cgroup = format!("kubepods/burstable/pod{uid}");
    let now = |node: &Node| {
        Ok::<u64, anyhow::Error>(node.cgroups.read(&cgroup, "pids.current")?.parse()?)
    };
    let is_full = async |node: &Node| Ok(now(node)? >= PROCESSES - 2);
    on.node
        .await_until("the pod has all its processes", SOON, is_full)
        .await?;
    others_run(&on).await?;
    let now = now(&on.node)?;
    ensure!(
        (PROCESSES - 2..=PROCESSES).contains(&now),
        "{now} processes"
    );
    Ok(())
}

#[tokio::test]
async fn memory_on_docker_through_the_shim() {
    memory(cluster(Node::with_shim().await).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn memory_on_containerd() {
    memory(cluster(Node::with_containerd().await).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn processes_on_docker_through_the_shim() {
    processes(cluster(Node::with_shim().await).await)
        .await
        .unwrap();
}

#[tokio::test]
async fn processes_on_containerd() {
    processes(cluster(Node::with_containerd().await).await)
        .await
        .unwrap();
}
