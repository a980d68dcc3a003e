//! The life of pods' cgroups on a node: kills of the kubelet, leftovers, and what does not fit.

use std::{fs, process::Command};

use anyhow::Result;
use e2e::{images, node::Node};
use serde_json::{Value, json};

use super::{CONFIGURATION, SOON, cgroup_of, container_id, limits::limits};

/// More than any machine has.
const TOO_MUCH: &str = "900Ti";

fn pod(name: &str, resources: &Value, command: &[&str]) -> String {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": images::BUSYBOX, "command": command, "resources": resources,
            }],
        },
    })
    .to_string()
}

pub(super) async fn run(mut node: Node) {
    what_does_not_fit_has_no_cgroup(&node).await.unwrap();
    a_container_sees_its_limits(&node).await.unwrap();
    processes_are_limited(&node).await.unwrap();
    pods_of_a_killed_kubelet_keep_their_cgroups(&mut node)
        .await
        .unwrap();
    leftovers_are_removed(&mut node).await.unwrap();
}

async fn what_does_not_fit_has_no_cgroup(node: &Node) -> Result<()> {
    let resources = json!({"requests": {"memory": TOO_MUCH}});
    node.write_manifest("huge.json", &pod("huge", &resources, &["sleep", "1000"]))?;
    let refused = |pod: &Value| pod["status"]["phase"] == "Failed";
    let huge = node.await_pod("huge", SOON, refused).await?;
    // Static pods are critical, so room for them is made by preemption, which fails.
    assert_eq!(huge["status"]["reason"], "UnexpectedAdmissionError");
    let uid = huge["metadata"]["uid"].as_str().unwrap_or_default();
    assert!(!node.cgroups.has(&format!("kubepods/burstable/pod{uid}")));
    node.remove_manifest("huge.json")
}

async fn a_container_sees_its_limits(node: &Node) -> Result<()> {
    let script = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max \
                  2>/dev/null; sleep 1000";
    let resources = json!({"limits": {"memory": "32Mi"}});
    let manifest = pod("seen", &resources, &["sh", "-c", script]);
    node.write_manifest("seen.json", &manifest)?;
    let seen = node.await_running("seen", SOON).await?;
    let uid = seen["metadata"]["uid"].as_str().unwrap_or_default();
    let log = node.path(&format!("logs/default_seen-node_{uid}/c/0.log"));
    let limit = (32 << 20).to_string();
    let is_seen = async |_: &Node| Ok(fs::read_to_string(&log)?.contains(&limit));
    node.await_until("the container reads its limit", SOON, is_seen)
        .await?;
    node.remove_manifest("seen.json")
}

/// A fork bomb below the limit of processes leaves the node answering, and cannot exceed it.
async fn processes_are_limited(node: &Node) -> Result<()> {
    // The shell in the background ends when the kernel refuses a process; what it started stays.
    let script = "(i=0; while [ $i -lt 1000 ]; do sleep 300 & i=$((i+1)); done) & sleep 300";
    let manifest = pod("bomb", &json!({}), &["sh", "-c", script]);
    node.write_manifest("bomb.json", &manifest)?;
    let begun = |pod: &Value| !pod["status"]["qosClass"].is_null();
    let bomb = node.await_pod("bomb", SOON, begun).await?;
    let cgroup = cgroup_of(&bomb)?;
    let is_full = async |node: &Node| {
        let now = node
            .cgroups
            .read(&cgroup, "pids.current")
            .unwrap_or_default();
        let now = now.parse::<u64>().unwrap_or_default();
        assert!(now <= 500, "{now} processes");
        Ok(now >= 490)
    };
    node.await_until("the pod has all its processes", SOON, is_full)
        .await?;
    node.pods().await?;
    node.remove_manifest("bomb.json")?;
    let gone = async |node: &Node| Ok(!node.cgroups.has(&cgroup));
    node.await_until("the pod's end", SOON, gone).await
}

async fn pods_of_a_killed_kubelet_keep_their_cgroups(node: &mut Node) -> Result<()> {
    let resources =
        json!({"requests": {"cpu": "100m"}, "limits": {"cpu": "200m", "memory": "32Mi"}});
    let manifest = pod("kept", &resources, &["sleep", "1000"]);
    node.write_manifest("kept.json", &manifest)?;
    let kept = node.await_running("kept", SOON).await?;
    let cgroup = cgroup_of(&kept)?;
    let before = limits(node, &cgroup)?;
    node.kill_kubelet()?;
    assert_eq!(limits(node, &cgroup)?, before);
    node.start_kubelet_with(CONFIGURATION, &[]).await?;
    let same = node.await_running("kept", SOON).await?;
    assert_eq!(container_id(&same, "c")?, container_id(&kept, "c")?);
    assert_eq!(limits(node, &cgroup)?, before);
    node.remove_manifest("kept.json")?;
    let gone = async |node: &Node| Ok(!node.cgroups.has(&cgroup));
    node.await_until("the pod's end", SOON, gone).await
}

/// What an earlier kubelet left, with a process in it.
async fn leftovers_are_removed(node: &mut Node) -> Result<()> {
    let left = "kubepods/besteffort/pod00000000-0000-0000-0000-000000000001";
    node.cgroups.make(left)?;
    let mut stray = Command::new("sleep").arg("1000").spawn()?;
    node.cgroups.add_process(left, stray.id())?;
    let gone = async |node: &Node| Ok(!node.cgroups.has(left));
    let removed = node.await_until("the leftover's end", SOON, gone).await;
    if removed.is_err() {
        stray.kill()?;
    }
    let status = stray.wait()?;
    removed?;
    assert!(!status.success(), "the process ended with {status}");
    Ok(())
}
