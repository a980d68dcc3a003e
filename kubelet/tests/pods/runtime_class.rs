//! Pods with a runtime class.

use std::sync::Arc;

use serde_json::json;

use crate::{
    node::{Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

fn message(kubelet: &Running, name: &str) -> String {
    let state = kubelet.container(name).state.unwrap_or_default();
    let waiting = state.waiting.unwrap_or_default();
    waiting.message.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn the_handler_of_its_class_runs_a_pod_once_there_is_one() {
    let objects = Arc::new(MemoryObjects::default());
    let node = Node::with_objects(Arc::clone(&objects) as _);
    let kubelet = node.start();
    let spec = json!({"runtimeClassName": "gvisor"});
    kubelet.add(pod("web", "u1", spec)).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "web") == "runtimeclass.node.k8s.io \"gvisor\" not found"
    })
    .await;
    assert!(node.runtime.sandboxes().is_empty());

    objects.set_away(Some("out of reach"));
    until("the other message", 60 * SECOND, || {
        message(&kubelet, "web").starts_with("failed to lookup RuntimeClass gvisor: ")
    })
    .await;

    objects.set_away(None);
    objects.put(
        "runtimeclass.node.k8s.io",
        json!({"metadata": {"name": "gvisor"}, "handler": "runsc"}),
    );
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    assert_eq!(node.runtime.sandboxes()[0].runtime_handler, "runsc");
    kubelet.add(pod("plain", "u2", json!({}))).await;
    kubelet.until_phase("plain", "Running", 5 * SECOND).await;
    assert_eq!(node.runtime.sandboxes()[1].runtime_handler, "");
}

#[tokio::test(start_paused = true)]
async fn a_handler_without_user_namespaces_is_named() {
    let objects = Arc::new(MemoryObjects::default());
    objects.put(
        "runtimeclass.node.k8s.io",
        json!({"metadata": {"name": "gvisor"}, "handler": "runsc"}),
    );
    let node = Node::with_objects(objects);
    node.runtime.set_user_namespaces(true);
    let kubelet = node.start();
    let spec = json!({"runtimeClassName": "gvisor", "hostUsers": false});
    kubelet.add(pod("web", "u1", spec)).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "web")
            == "can't set `spec.hostUsers: false`, RuntimeClass handler \"runsc\" does not \
                support user namespaces: the handler \"runsc\" is not known"
    })
    .await;
    assert!(node.runtime.sandboxes().is_empty());
}
