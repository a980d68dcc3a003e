//! Ephemeral containers.

use cri_proto::runtime::v1::NamespaceMode;
use fake_runtime::{Fault, Times, Verb};
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;

use crate::node::{IMAGE, Node, SECOND, pod, until};

#[tokio::test(start_paused = true)]
async fn one_is_added_to_a_running_pod_and_runs_once() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let spec = json!({"ephemeralContainers": [
        {"name": "debug", "image": IMAGE, "targetContainerName": "c"}
    ]});
    kubelet.update(pod("web", "u1", spec.clone())).await;
    until("it to run", 3 * SECOND, || {
        node.runtime.running("debug").len() == 1
    })
    .await;
    let debug = &node.runtime.running("debug")[0];
    let linux = debug.config.linux.as_ref().unwrap();
    let context = linux.security_context.as_ref().unwrap();
    let namespaces = context.namespace_options.as_ref().unwrap();
    assert_eq!(namespaces.pid(), NamespaceMode::Target);
    assert_eq!(namespaces.target_id, node.runtime.running("c")[0].id);

    node.runtime.exit_container("debug", 1);
    sleep(60 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::StartContainer), 2);
    assert_eq!(kubelet.phase("web"), "Running");
    kubelet.remove(pod("web", "u1", spec)).await;
    until("its end", 5 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    assert!(node.runtime.containers().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_start_says_why() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let missing = Status::unknown("exec: \"no-such-command\": not found");
    node.runtime
        .fault(Verb::StartContainer, Fault::Error(missing), Times::Always);
    let spec = json!({"ephemeralContainers": [{"name": "debug", "image": IMAGE}]});
    kubelet.update(pod("web", "u1", spec)).await;
    sleep(30 * SECOND).await;
    let statuses = kubelet.status("web").ephemeral_container_statuses.unwrap();
    let waiting = statuses[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("RunContainerError"));
    let message = waiting.message.unwrap();
    assert!(message.contains("no-such-command"), "{message}");
    assert_eq!(node.runtime.creations("u1", "debug"), 1);
}

#[tokio::test(start_paused = true)]
async fn one_without_its_target_waits_for_it() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let spec = json!({"ephemeralContainers": [
        {"name": "debug", "image": IMAGE, "targetContainerName": "other"}
    ]});
    kubelet.update(pod("web", "u1", spec)).await;
    sleep(30 * SECOND).await;
    assert!(node.runtime.running("debug").is_empty());
    assert_eq!(kubelet.phase("web"), "Running");
    assert_eq!(node.runtime.running("c").len(), 1);
}
