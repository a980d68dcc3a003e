//! What probes do to pods.

use e2e::fake_runtime::{Behaviour, Exec, Verb};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// How a container behaves in which commands end with `code`.
fn commands_exit(code: i32) -> Behaviour {
    Behaviour {
        exec: Some(Exec {
            code,
            ..Exec::default()
        }),
        ..Behaviour::default()
    }
}

/// A probe by command, every two seconds.
fn probe(failure_threshold: i32) -> Value {
    json!({
        "exec": {"command": ["check"]}, "periodSeconds": 2, "timeoutSeconds": 1,
        "failureThreshold": failure_threshold
    })
}

/// The pod `web` with one container of these probes.
fn probed(probes: Value) -> Pod {
    let mut container = json!({"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    for (key, value) in probes.as_object().unwrap() {
        container[key] = value.clone();
    }
    pod("web", "u1", json!({"containers": [container]}))
}

#[tokio::test(start_paused = true)]
async fn probes_end_with_their_pod() {
    let node = Node::new();
    node.runtime.behave("c", commands_exit(0));
    let kubelet = node.start();
    let pod = probed(json!({"livenessProbe": probe(1), "readinessProbe": probe(1)}));
    kubelet.add(pod.clone()).await;
    until("its readiness", 20 * SECOND, || {
        node.runtime.calls(Verb::ExecSync) > 3
    })
    .await;
    kubelet.remove(pod).await;
    until("its end", 10 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    let calls = node.runtime.calls(Verb::ExecSync);
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(node.runtime.calls(Verb::ExecSync), calls);
}
