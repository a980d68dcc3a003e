//! Containers with CPUs and memory of their own, as the kernel has them: pods that come and go, a
//! kubelet that is killed, and a policy that is changed.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use cri_proto::podresources::v1::{
    ListPodResourcesRequest, pod_resources_lister_client::PodResourcesListerClient,
};
use e2e::{cri::Cri, images, node::Node};
use serde_json::{Value, json};

use super::{
    SOON, cgroup_of, container_id,
    limits::{limits, of_container},
};

const STATE: &str = "kubelet/cpu_manager_state";
/// Pods have all CPUs but the first one to themselves. The 1 MiB is the threshold of eviction.
const CONFIGURATION: &str = "cpuManagerPolicy: static\n\
                             reservedSystemCPUs: '0'\n\
                             topologyManagerPolicy: single-numa-node\n\
                             memoryManagerPolicy: Static\n\
                             systemReserved: {memory: 50Mi}\n\
                             reservedMemory: [{numaNode: 0, limits: {memory: 51Mi}}]\n";

/// A pod with a CPU of its own.
fn own() -> String {
    let list = json!({"cpu": "1", "memory": "50Mi"});
    pod("own", &json!({"requests": list, "limits": list}))
}

/// A pod that leaves room for the other one.
fn shared() -> String {
    pod(
        "shared",
        &json!({"requests": {"cpu": "0"}, "limits": {"cpu": "100m"}}),
    )
}

fn pod(name: &str, resources: &Value) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": images::BUSYBOX, "command": ["sleep", "10000"],
                "resources": resources,
            }],
        },
    })
    .to_string()
}

pub(super) async fn run(mut node: Node) {
    exclusive_cpus_are_nobody_elses(&mut node).await.unwrap();
    another_policy_is_refused(&mut node).await.unwrap();
}

async fn exclusive_cpus_are_nobody_elses(node: &mut Node) -> Result<()> {
    node.start_kubelet_with(CONFIGURATION, &[]).await?;
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    let online = online.trim();
    ensure!(online != "0", "the machine has only one CPU");
    node.write_manifest("shared.json", &shared())?;
    let shared = node.await_running("shared", SOON).await?;
    assert_eq!(
        allowed(node, &shared).await?,
        (online.to_owned(), "0".to_owned())
    );

    node.write_manifest("own.json", &own())?;
    let own = node.await_running("own", SOON).await?;
    let before = allowed(node, &own).await?;
    assert_eq!(before, ("1".to_owned(), "0".to_owned()));
    let without_it = match online {
        "0-1" => "0".to_owned(),
        "0-2" => "0,2".to_owned(),
        more => more.replacen("0-", "0,2-", 1),
    };
    await_cpus(node, &shared, &without_it).await?;
    // Neither its cgroup nor that of its container has a CPU quota; others have.
    for (pod, quota) in [(&own, None), (&shared, Some(10_000))] {
        let cgroup = cgroup_of(pod)?;
        assert_eq!(limits(node, &cgroup)?.quota, quota);
        let id = container_id(pod, "c")?;
        assert_eq!(of_container(node, &cgroup, id)?.quota, quota);
    }

    check_pod_resources(node).await?;
    node.kill_kubelet()?;
    let state = fs::read_to_string(node.path(STATE))?;
    node.start_kubelet_with(CONFIGURATION, &[]).await?;
    let again = node.await_running("own", SOON).await?;
    node.await_running("shared", SOON).await?;
    assert_eq!(container_id(&again, "c")?, container_id(&own, "c")?);
    assert_eq!(allowed(node, &own).await?, before);
    assert_eq!(fs::read_to_string(node.path(STATE))?, state);
    let page = node.page("/metrics").await?;
    let count = "kubelet_cpu_manager_exclusive_cpu_allocation_count 1\n";
    assert!(page.contains(count), "{page}");

    node.remove_manifest("own.json")?;
    await_cpus(node, &shared, online).await?;
    let is_released = async |node: &Node| {
        let state = fs::read_to_string(node.path(STATE))?;
        Ok(!state.contains("entries"))
    };
    node.await_until("the CPU is free in the state", SOON, is_released)
        .await
}

/// The pod resources API lists both pods, and the CPU of one of them.
async fn check_pod_resources(node: &Node) -> Result<()> {
    let mut client = PodResourcesListerClient::new(node.pod_resources().await?);
    let listed = client.list(ListPodResourcesRequest {}).await?.into_inner();
    let pods = listed.pod_resources.iter();
    let mut cpus: Vec<(&str, &[i64])> = pods
        .flat_map(|pod| {
            let name = pod.name.as_str();
            pod.containers.iter().map(move |it| (name, &*it.cpu_ids))
        })
        .collect();
    cpus.sort_unstable();
    assert_eq!(cpus, [("own-node", &[1][..]), ("shared-node", &[])]);
    Ok(())
}

/// What containers have is not forgotten by a kubelet without managers.
async fn another_policy_is_refused(node: &mut Node) -> Result<()> {
    node.stop_kubelet()?;
    let started = node.start_kubelet().await;
    let error = format!("{:#}", started.err().context("the kubelet starts")?);
    let path = node.path(STATE).display().to_string();
    for part in [
        path.as_str(),
        "\"static\"",
        "drain the node, remove the file",
    ] {
        let log = node.kubelet_log();
        assert!(log.contains(part), "no {part} in {log} ({error})");
    }
    for file in [STATE, "kubelet/memory_manager_state"] {
        fs::remove_file(node.path(file))?;
    }
    node.start_kubelet().await?;
    node.await_running("shared", SOON).await?;
    Ok(())
}

/// The CPUs and the memory nodes of a process in the container.
async fn allowed(node: &Node, pod: &Value) -> Result<(String, String)> {
    let id = container_id(pod, "c")?;
    let command = ["cat", "/proc/self/status"];
    let output = Cri::of(node).await?.exec(id, &command, 60).await?;
    let text = String::from_utf8(output.stdout)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.with_context(|| format!("no {name} in {text:?}"));
        value.map(|value| value.trim().to_owned())
    };
    Ok((field("Cpus_allowed_list:")?, field("Mems_allowed_list:")?))
}

async fn await_cpus(node: &Node, pod: &Value, cpus: &str) -> Result<()> {
    let what = format!("{} on CPUs {cpus}", pod["metadata"]["name"]);
    let is_there = async |node: &Node| Ok(allowed(node, pod).await?.0 == cpus);
    node.await_until(&what, SOON, is_there).await
}
