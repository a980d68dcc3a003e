//! Requests about pods: watches, statuses, resizes, deletions, mirrors.

use anyhow::Result;
use hyper::Method;
use serde_json::{Value, json};

use super::side::{As, Side};

const PODS: &str = "/api/v1/namespaces/default/pods";
const WEB: &str = "/api/v1/namespaces/default/pods/web";
const OF_THE_NODE: &str = "fieldSelector=spec.nodeName%3Dn1";

pub(crate) async fn exchange(on: &mut Side) -> Result<()> {
    let map = json!({"metadata": {"name": "settings"}, "data": {"a": "b"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    on.give("a config map", As::Admin, Method::POST, maps, &map)
        .await?;
    let pod = create(on).await?;
    report(on, &pod).await?;
    watch(on).await?;
    objects(on, &pod).await?;
    change(on).await?;
    delete(on, &pod).await?;
    mirror(on).await?;
    events(on, &pod).await?;
    expire(on, &pod).await
}

async fn create(on: &mut Side) -> Result<Value> {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {"nodeName": "n1", "terminationGracePeriodSeconds": 7,
            "initContainers": [{"name": "i", "image": "busybox:1"}],
            "containers": [
                {"name": "c", "image": "busybox:1", "ports": [{"containerPort": 80}],
                    "resources": {"requests": {"cpu": "0.1"}, "limits": {"cpu": "1", "memory": "1024Ki"}},
                    "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                    "livenessProbe": {"httpGet": {"port": 80}},
                    "envFrom": [{"configMapRef": {"name": "settings"}}]},
                {"name": "d", "image": "busybox"},
            ],
            "volumes": [{"name": "m", "configMap": {"name": "settings"}}, {"name": "e"},
                {"name": "t", "projected": {"sources": [{"serviceAccountToken": {
                    "audience": "vault", "path": "token"}}]}}]},
    });
    let made = on
        .give("a pod", As::Admin, Method::POST, PODS, &pod)
        .await?;
    on.ask("the pod", As::Node, Method::GET, WEB).await?;
    on.ask("no pod", As::Admin, Method::GET, &format!("{PODS}/none"))
        .await?;
    on.give("the pod again", As::Admin, Method::POST, PODS, &pod)
        .await?;
    Ok(made)
}

fn condition(kind: &str, status: &str) -> Value {
    json!({"type": kind, "status": status, "lastTransitionTime": "2026-11-01T00:00:00Z",
        "observedGeneration": 1})
}

fn container(name: &str) -> Value {
    let running = json!({"running": {"startedAt": "2026-11-01T00:00:00Z"}});
    json!({"name": name, "image": "busybox:1", "imageID": "sha256:1", "containerID": "docker://1",
        "ready": true, "started": true, "restartCount": 0, "state": running,
        "allocatedResources": {"cpu": "100m"}, "resources": {"requests": {"cpu": "0.1"}}})
}

async fn report(on: &mut Side, pod: &Value) -> Result<()> {
    let status = format!("{WEB}/status");
    let uid = &pod["metadata"]["uid"];
    let patch = json!({"metadata": {"uid": uid}, "status": {
        "observedGeneration": 1, "phase": "Running", "hostIP": "192.0.2.10",
        "hostIPs": [{"ip": "192.0.2.10"}],
        "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}], "startTime": "2026-11-01T00:00:00Z",
        "$setElementOrder/conditions": [{"type": "Initialized"}, {"type": "Ready"}],
        "conditions": [condition("Initialized", "True"), condition("Ready", "False")],
        "containerStatuses": [container("c"), container("d")],
    }});
    on.give("report the pod", As::Node, Method::PATCH, &status, &patch)
        .await?;
    on.give("report it again", As::Node, Method::PATCH, &status, &patch)
        .await?;
    let patch = json!({"metadata": {"uid": uid}, "spec": {"nodeName": "elsewhere"}, "status": {
        "$setElementOrder/conditions": [{"type": "Ready"}, {"type": "Initialized"}],
        "conditions": [condition("Ready", "True")],
        "podIPs": [{"$patch": "delete", "ip": "10.1.0.1"}, {"ip": "10.1.0.2"}],
        "podIP": "10.1.0.2", "message": "all is well",
    }});
    on.give("report a change", As::Node, Method::PATCH, &status, &patch)
        .await?;
    let patch = json!({"metadata": {"uid": uid}, "status": {"message": null,
        "conditions": [{"$patch": "delete", "type": "Initialized"}]}});
    on.give("report less", As::Node, Method::PATCH, &status, &patch)
        .await?;
    let patch = json!({"metadata": {"uid": "other"}, "status": {"phase": "Failed"}});
    on.give(
        "report another pod",
        As::Node,
        Method::PATCH,
        &status,
        &patch,
    )
    .await?;
    let none = format!("{PODS}/none/status");
    on.give("report no pod", As::Node, Method::PATCH, &none, &patch)
        .await?;
    Ok(())
}

async fn watch(on: &mut Side) -> Result<()> {
    on.ask(
        "list the node's pods",
        As::Node,
        Method::GET,
        &format!("/api/v1/pods?{OF_THE_NODE}&limit=500"),
    )
    .await?;
    let first = format!(
        "{OF_THE_NODE}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion="
    );
    on.watch("stream the node's pods", As::Node, "/api/v1/pods", &first)
        .await?;
    let old = format!("{OF_THE_NODE}&resourceVersion=0");
    on.watch("watch the node's pods", As::Node, "/api/v1/pods", &old)
        .await?;
    Ok(())
}

async fn objects(on: &mut Side, pod: &Value) -> Result<()> {
    let maps = "/api/v1/namespaces/default/configmaps";
    on.ask(
        "its config map",
        As::Node,
        Method::GET,
        &format!("{maps}/settings"),
    )
    .await?;
    let one = "fieldSelector=metadata.name%3Dsettings&resourceVersion=0";
    on.watch("watch its config map", As::Node, maps, one)
        .await?;
    on.ask(
        "services",
        As::Node,
        Method::GET,
        "/api/v1/services?limit=500",
    )
    .await?;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
    "spec": {"audiences": ["vault"], "expirationSeconds": 3607, "boundObjectRef": {
        "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": pod["metadata"]["uid"]}}});
    let path = format!("{accounts}/default/token");
    on.give("a token", As::Node, Method::POST, &path, &token)
        .await?;
    let mut own = token.clone();
    own["spec"]["audiences"] = json!([]);
    on.give(
        "a token for the server",
        As::Node,
        Method::POST,
        &path,
        &own,
    )
    .await?;
    let mut other = token.clone();
    other["spec"]["boundObjectRef"]["uid"] = json!("other");
    on.give(
        "a token of another pod",
        As::Admin,
        Method::POST,
        &path,
        &other,
    )
    .await?;
    let mut short = token;
    short["spec"]["expirationSeconds"] = json!(10);
    on.give("a short token", As::Node, Method::POST, &path, &short)
        .await?;
    Ok(())
}

async fn change(on: &mut Side) -> Result<()> {
    let resources = json!({"requests": {"cpu": "200m"}, "limits": {"cpu": "2"}});
    let patch = json!({"spec": {"containers": [{"name": "c", "resources": resources}]}});
    on.give(
        "resize",
        As::Admin,
        Method::PATCH,
        &format!("{WEB}/resize"),
        &patch,
    )
    .await?;
    let patch = json!({"spec": {"ephemeralContainers": [{"name": "look", "image": "busybox:1"}]}});
    on.give(
        "an ephemeral container",
        As::Admin,
        Method::PATCH,
        &format!("{WEB}/ephemeralcontainers"),
        &patch,
    )
    .await?;
    let patch = json!({"spec": {"containers": [{"name": "c", "image": "busybox:2"}]}});
    on.give("an image", As::Admin, Method::PATCH, WEB, &patch)
        .await?;
    let patch = json!({"spec": {"hostNetwork": true}});
    on.give("what cannot change", As::Admin, Method::PATCH, WEB, &patch)
        .await?;
    Ok(())
}

fn now(uid: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0,
        "preconditions": {"uid": uid}})
}

async fn delete(on: &mut Side, pod: &Value) -> Result<()> {
    on.ask("delete the pod", As::Admin, Method::DELETE, WEB)
        .await?;
    on.ask("delete it again", As::Admin, Method::DELETE, WEB)
        .await?;
    let shorter = json!({"gracePeriodSeconds": 3});
    on.give("sooner", As::Admin, Method::DELETE, WEB, &shorter)
        .await?;
    on.give(
        "delete another pod for good",
        As::Node,
        Method::DELETE,
        WEB,
        &now(&json!("other")),
    )
    .await?;
    let gone = now(&pod["metadata"]["uid"]);
    on.give("delete it for good", As::Node, Method::DELETE, WEB, &gone)
        .await?;
    on.give("delete no pod", As::Node, Method::DELETE, WEB, &gone)
        .await?;
    Ok(())
}

async fn mirror(on: &mut Side) -> Result<()> {
    let node = on.plane.get("/api/v1/nodes/n1").await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "own-n1", "annotations": {
            "kubernetes.io/config.mirror": "1", "kubernetes.io/config.hash": "1",
            "kubernetes.io/config.source": "file", "kubernetes.io/config.seen": "now"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1",
                "uid": node["metadata"]["uid"], "controller": true}]},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "busybox:1"}],
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"}]},
    });
    let made = on
        .give("a mirror", As::Node, Method::POST, PODS, &pod)
        .await?;
    let path = format!("{PODS}/own-n1");
    let gone = now(&made["metadata"]["uid"]);
    on.give("delete the mirror", As::Node, Method::DELETE, &path, &gone)
        .await?;
    Ok(())
}

async fn events(on: &mut Side, pod: &Value) -> Result<()> {
    let events = "/api/v1/namespaces/default/events";
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": "default"},
        "involvedObject": {"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "web",
            "uid": pod["metadata"]["uid"], "fieldPath": "spec.containers{c}"},
        "reason": "Started", "message": "Started container c", "type": "Normal", "count": 1,
        "source": {"component": "kubelet", "host": "n1"}, "reportingComponent": "kubelet",
        "reportingInstance": "n1",
        "firstTimestamp": "2026-11-01T00:00:00Z", "lastTimestamp": "2026-11-01T00:00:00Z",
    });
    on.give("an event", As::Node, Method::POST, events, &event)
        .await?;
    let again = json!({"count": 2, "lastTimestamp": "2026-11-01T00:00:01Z"});
    let path = format!("{events}/web.1");
    on.give("the event again", As::Node, Method::PATCH, &path, &again)
        .await?;
    let path = format!("{events}/web.2");
    on.give("no event", As::Node, Method::PATCH, &path, &again)
        .await?;
    Ok(())
}

async fn expire(on: &mut Side, pod: &Value) -> Result<()> {
    let revision = pod["metadata"]["resourceVersion"].as_str();
    let query = format!(
        "{OF_THE_NODE}&resourceVersion={}",
        revision.unwrap_or_default()
    );
    on.plane.forget_changes().await?;
    on.watch("watch what is forgotten", As::Node, "/api/v1/pods", &query)
        .await?;
    Ok(())
}
