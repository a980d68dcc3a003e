//! Requests about a node: its object, status, lease and CSI drivers.

use std::time::Duration;

use anyhow::Result;
use hyper::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::side::{As, Side};

/// Controllers that changed nothing for this long have finished.
const QUIET: Duration = Duration::from_secs(3);

const NODES: &str = "/api/v1/nodes";
const NODE: &str = "/api/v1/nodes/n1";
const STATUS: &str = "/api/v1/nodes/n1/status";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1";
const CSI_NODES: &str = "/apis/storage.k8s.io/v1/csinodes";

pub(crate) async fn exchange(on: &mut Side) -> Result<()> {
    let node = register(on).await?;
    report(on).await?;
    lease(on, &node).await?;
    csi_node(on, &node).await
}

fn ready(status: &str, reason: &str) -> Value {
    json!({"type": "Ready", "status": status, "reason": reason, "message": "as it is",
        "lastHeartbeatTime": "2026-11-01T00:00:00Z", "lastTransitionTime": "2026-11-01T00:00:00Z"})
}

async fn register(on: &mut Side) -> Result<Value> {
    on.ask("a missing node", As::Node, Method::GET, NODE)
        .await?;
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {
            "kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
            "beta.kubernetes.io/arch": "amd64",
        }, "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
        "spec": {"providerID": "test://n1"},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "192.0.2.10"},
                {"type": "Hostname", "address": "n1"}],
            "capacity": {"cpu": "2", "memory": "4194304Ki", "pods": "110"},
            "allocatable": {"cpu": "2", "memory": "4194304Ki", "pods": "110"},
            "conditions": [ready("False", "KubeletNotReady")],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b",
                "kernelVersion": "6.1.0", "osImage": "Debian GNU/Linux 12",
                "containerRuntimeVersion": "docker://26.1.5", "kubeletVersion": "v1.36.0",
                "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64"},
            "images": [{"names": ["busybox:1"], "sizeBytes": 1000}],
            "runtimeHandlers": [{"name": "", "features": {"recursiveReadOnlyMounts": false,
                "userNamespaces": false}}],
        },
    });
    let made = on
        .give("register", As::Node, Method::POST, NODES, &node)
        .await?;
    on.give("register again", As::Node, Method::POST, NODES, &node)
        .await?;
    Ok(made)
}

async fn report(on: &mut Side) -> Result<()> {
    let patch = json!({"status": {
        "capacity": {"cpu": "4", "pods": null, "ephemeral-storage": "100Gi"},
        "conditions": [ready("True", "KubeletReady"), {"type": "MemoryPressure", "status": "False",
            "lastHeartbeatTime": "2026-11-01T00:00:00Z",
            "lastTransitionTime": "2026-11-01T00:00:00Z"}],
    }});
    on.give("report the node", As::Node, Method::PATCH, STATUS, &patch)
        .await?;
    on.give("report the same", As::Node, Method::PATCH, STATUS, &patch)
        .await?;
    let patch = json!({"status": {
        "addresses": [{"$patch": "replace"}, {"type": "InternalIP", "address": "192.0.2.11"},
            {"type": "InternalIP", "address": "2001:db8::1"}, {"type": "Hostname", "address": "n1"}],
        "images": [{"names": ["busybox:2", "busybox:3"], "sizeBytes": 1}],
        "volumesInUse": ["kubernetes.io/csi/d^v"],
    }});
    on.give("other addresses", As::Node, Method::PATCH, STATUS, &patch)
        .await?;
    let patch = json!({"metadata": {"labels": {"place": "here"}, "annotations": {"a": "b"}},
        "spec": {"unschedulable": true}, "status": {"volumesInUse": null}});
    on.give("metadata beside", As::Node, Method::PATCH, STATUS, &patch)
        .await?;
    await_quiet(on).await?;
    on.ask("the node", As::Node, Method::GET, NODE).await?;
    let query = "fieldSelector=metadata.name%3Dn1";
    let list = on
        .ask(
            "the node as a list",
            As::Node,
            Method::GET,
            &format!("{NODES}?{query}"),
        )
        .await?;
    let revision = list["metadata"]["resourceVersion"].as_str();
    let query = format!("{query}&resourceVersion={}", revision.unwrap_or_default());
    on.watch("watch the node from now", As::Node, NODES, &query)
        .await?;
    Ok(())
}

/// Waits until controllers have finished with the new node.
async fn await_quiet(on: &Side) -> Result<()> {
    let mut revision = Value::Null;
    loop {
        let node = on.plane.get(NODE).await?;
        let now = &node["metadata"]["resourceVersion"];
        if *now == revision {
            return Ok(());
        }
        revision = now.clone();
        sleep(QUIET).await;
    }
}

async fn lease(on: &mut Side, node: &Value) -> Result<()> {
    on.ask("a missing lease", As::Node, Method::GET, LEASE)
        .await?;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n1", "namespace": "kube-node-lease", "ownerReferences": [{
            "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"]}]},
        "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40,
            "renewTime": "2026-11-01T00:00:00.000001Z"},
    });
    let first = on
        .give("a lease", As::Node, Method::POST, LEASES, &lease)
        .await?;
    on.give("a lease again", As::Node, Method::POST, LEASES, &lease)
        .await?;
    let mut renewed = first.clone();
    renewed["spec"]["renewTime"] = json!("2026-11-01T00:00:10.000001Z");
    on.give("renew it", As::Node, Method::PUT, LEASE, &renewed)
        .await?;
    renewed["spec"]["renewTime"] = json!("2026-11-01T00:00:20.000001Z");
    on.give("renew an old one", As::Node, Method::PUT, LEASE, &renewed)
        .await?;
    Ok(())
}

async fn csi_node(on: &mut Side, node: &Value) -> Result<()> {
    let path = format!("{CSI_NODES}/n1");
    on.ask("a missing CSINode", As::Node, Method::GET, &path)
        .await?;
    let object = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode",
        "metadata": {"name": "n1", "ownerReferences": [{
            "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"]}]},
        "spec": {"drivers": []},
    });
    on.give("a CSINode", As::Node, Method::POST, CSI_NODES, &object)
        .await?;
    let patch = json!({"spec": {"drivers": [{"name": "d", "nodeID": "n1", "topologyKeys": ["zone"],
        "allocatable": {"count": 3}}]}});
    on.give("a driver", As::Node, Method::PATCH, &path, &patch)
        .await?;
    Ok(())
}
