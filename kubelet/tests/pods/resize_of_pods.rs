//! In-place resizes of pods as a whole.

use fake_runtime::{Fault, Times, Usage, Verb};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    node::{IMAGE, Node, SECOND, pod, until},
    resize::{actual, condition, resources, sized},
};

/// A pod with two containers, one of which has limits of its own.
fn whole(cpu: &str, memory: &str) -> Pod {
    let own = json!({"limits": {"cpu": "50m", "memory": "16Mi"}});
    pod(
        "web",
        "u1",
        json!({
            "resources": resources(cpu, memory),
            "containers": [
                {"name": "c", "image": IMAGE}, {"name": "own", "image": IMAGE, "resources": own}
            ]
        }),
    )
}

/// Memory limits of the sandbox and of both containers.
fn limits(node: &Node) -> [i64; 3] {
    let sandbox = node.runtime.sandboxes()[0].config.clone();
    let sandbox = sandbox.linux.unwrap().resources.unwrap();
    let of = |name| {
        let config = node.runtime.running(name)[0].config.clone();
        let resources = config.linux.unwrap().resources.unwrap();
        resources.memory_limit_in_bytes
    };
    [sandbox.memory_limit_in_bytes, of("c"), of("own")].map(|limit| limit >> 20)
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_resized_as_a_whole() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(whole("100m", "64Mi")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    assert_eq!(limits(&node), [64, 64, 16]);

    kubelet.update(whole("200m", "128Mi")).await;
    until("its limits", 5 * SECOND, || limits(&node) == [128, 128, 16]).await;
    let in_progress = || condition(&kubelet, "PodResizeInProgress").is_some();
    until("its end", 5 * SECOND, || !in_progress()).await;
    let status = kubelet.status("web");
    let shown = serde_json::to_value(status.resources).unwrap();
    assert_eq!(shown, resources("200m", "128Mi"));
    let shown = serde_json::to_value(status.allocated_resources).unwrap();
    assert_eq!(shown, resources("200m", "128Mi")["requests"]);
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 2);
    let updates = node.runtime.calls(Verb::UpdateContainerResources);
    kubelet.stop().await;

    // The next kubelet knows the granted resources and the pending resize.
    let kubelet = node.start();
    kubelet.add(whole("200m", "1000Ti")).await;
    until("why not", 5 * SECOND, || {
        condition(&kubelet, "PodResizePending").is_some()
    })
    .await;
    sleep(70 * SECOND).await;
    assert_eq!(limits(&node), [128, 128, 16]);
    assert_eq!(node.runtime.calls(Verb::UpdateContainerResources), updates);
}

#[tokio::test(start_paused = true)]
async fn a_pod_never_has_less_than_its_containers() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(whole("100m", "64Mi")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    for verb in [
        Verb::UpdateContainerResources,
        Verb::UpdatePodSandboxResources,
    ] {
        node.runtime
            .fault(verb, Fault::Delay(SECOND), Times::Always);
    }
    for (memory, last) in [("128Mi", [128, 128, 16]), ("64Mi", [64, 64, 16])] {
        kubelet.update(whole("100m", memory)).await;
        until("its limits", 15 * SECOND, || {
            let now = limits(&node);
            assert!(now[0] >= now[1], "{now:?}");
            now == last
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_limit_is_not_below_what_is_used() {
    let node = Node::new();
    let kubelet = node.start();
    let limited = |limits: Value| {
        let mut resources = resources("100m", "16Mi");
        resources["limits"] = limits;
        sized(&resources, "NotRequired")
    };
    kubelet.add(limited(json!({}))).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    let usage = Usage {
        memory_bytes: 100 << 20,
        ..Usage::default()
    };
    node.runtime
        .set_usage(&node.runtime.running("c")[0].id, usage);
    kubelet.update(limited(json!({"memory": "64Mi"}))).await;
    let why = || condition(&kubelet, "PodResizeInProgress").and_then(|c| c.message);
    until("the reason", 15 * SECOND, || why().is_some()).await;
    assert!(why().unwrap().starts_with("cannot decrease memory limits"));
}

#[tokio::test(start_paused = true)]
async fn memory_that_a_pod_uses_is_not_taken_from_it() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(whole("100m", "128Mi")).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    for (name, mebibytes) in [("c", 60), ("own", 10)] {
        let usage = Usage {
            memory_bytes: mebibytes << 20,
            ..Usage::default()
        };
        node.runtime
            .set_usage(&node.runtime.running(name)[0].id, usage);
    }
    kubelet.update(whole("100m", "64Mi")).await;
    let why = || condition(&kubelet, "PodResizeInProgress").and_then(|c| c.message);
    until("the reason", 15 * SECOND, || why().is_some()).await;
    let message = "cannot decrease memory limits: attempting to set pod memory limit (67108864) \
                   below current usage (73400320)";
    assert_eq!(why().as_deref(), Some(message));
    assert_eq!(limits(&node), [128, 128, 16]);
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_does_not_size_sandboxes_resizes_containers() {
    // The second status is that of containerd 2.2.
    for status in [
        tonic::Status::unimplemented("no such method"),
        tonic::Status::unknown("not implemented yet"),
    ] {
        let node = Node::new();
        let fault = Fault::Error(status);
        node.runtime
            .fault(Verb::UpdatePodSandboxResources, fault, Times::Always);
        let kubelet = node.start();
        kubelet
            .add(sized(&resources("100m", "64Mi"), "NotRequired"))
            .await;
        kubelet.until_phase("web", "Running", 3 * SECOND).await;
        kubelet
            .update(sized(&resources("200m", "64Mi"), "NotRequired"))
            .await;
        until("the CPU", 15 * SECOND, || actual(&node) == (204, 64 << 20)).await;
    }
}
