//! Containers with devices of resource claims.

use std::{path::PathBuf, sync::Arc};

use cri_proto::dra_health::v1alpha1::HealthStatus;
use fake_dra_driver::{Call, FakeDraDriver};
use fake_runtime::FakeRuntime;
use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{EventQueue, EventRecorder};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

const DRIVER: &str = "gpu.example";
const CLAIM: &str = "resourceclaim.resource.k8s.io";

/// A node with a claim `shared` for the pods `u1` and `u2`.
fn node() -> (Node, EventQueue) {
    let objects = Arc::new(MemoryObjects::default());
    let reserved = ["u1", "u2"].map(|uid| json!({"resource": "pods", "name": "p", "uid": uid}));
    let results = json!([{"request": "r", "driver": DRIVER, "pool": "p", "device": "d"}]);
    objects.put(
        CLAIM,
        json!({
            "metadata": {"namespace": "default", "name": "shared"},
            "spec": {},
            "status": {
                "reservedFor": reserved, "allocation": {"devices": {"results": results}},
            },
        }),
    );
    let mut node = Node::with_objects(objects);
    let (recorder, queue) = EventRecorder::new("node");
    node.events = recorder;
    (node, queue)
}

fn root_dir(node: &Node) -> PathBuf {
    node.options().node.root_dir
}

/// A pod of an API server that uses the claim.
fn claiming(name: &str, uid: &str) -> Pod {
    let mut pod = pod(
        name,
        uid,
        json!({
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
            "containers": [{
                "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
                "resources": {"claims": [{"name": "gpu"}]},
            }],
        }),
    );
    pod.metadata.annotations = None;
    pod
}

/// The CDI devices of all running containers.
fn cdi(node: &Node) -> Vec<String> {
    let containers = node.runtime.running("c").into_iter();
    let devices = containers.flat_map(|container| container.config.cdi_devices);
    devices.map(|device| device.name).collect()
}

fn health(kubelet: &Running, name: &str) -> Value {
    serde_json::to_value(kubelet.container(name).allocated_resources_status).unwrap()
}

fn messages(queue: &mut EventQueue) -> Vec<String> {
    let events = std::iter::from_fn(|| queue.try_recv().ok());
    events.filter_map(|event| event.message).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_driver_and_gives_the_claim_back_at_its_end() {
    let (node, mut queue) = node();
    let kubelet = node.start();
    kubelet.add(claiming("a", "u1")).await;
    let mut told = Vec::new();
    until("the event", 60 * SECOND, || {
        told.extend(messages(&mut queue));
        let expected = "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver \
                        gpu.example is not registered";
        told.iter().any(|message| message == expected)
    })
    .await;
    assert_eq!(kubelet.phase("a"), "Pending");
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    assert!(node.ready_sandboxes().is_empty());

    let driver = FakeDraDriver::new(DRIVER);
    let serving = driver.serve(&root_dir(&node)).unwrap();
    kubelet.until_phase("a", "Running", 120 * SECOND).await;
    assert_eq!(cdi(&node), ["gpu.example/claim=shared"]);
    kubelet.add(claiming("b", "u2")).await;
    kubelet.until_phase("b", "Running", 10 * SECOND).await;
    assert_eq!(cdi(&node).len(), 2);
    let claim = vec!["default/shared/uid-of-shared".to_owned()];
    assert_eq!(driver.take_calls(), [Call::Prepare(claim.clone())]);

    kubelet.remove(claiming("a", "u1")).await;
    until("the end of a", 30 * SECOND, || cdi(&node).len() == 1).await;
    // The last pod's claim is its own until the driver has undone it.
    drop(serving);
    kubelet.remove(claiming("b", "u2")).await;
    until("the end of b", 30 * SECOND, || cdi(&node).is_empty()).await;
    sleep(30 * SECOND).await;
    assert_eq!(driver.take_calls(), []);
    let file = root_dir(&node).join("dra_manager_state");
    let users = || std::fs::read_to_string(&file).unwrap();
    assert!(
        !users().contains("u1") && users().contains("u2"),
        "{}",
        users()
    );
    let _serving = driver.serve(&root_dir(&node)).unwrap();
    let mut calls = Vec::new();
    until("the release", 300 * SECOND, || {
        calls.extend(driver.take_calls());
        !calls.is_empty()
    })
    .await;
    assert_eq!(calls, [Call::Unprepare(claim)]);
    until("the file", 10 * SECOND, || !users().contains("u2")).await;
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_rejected_after_a_reboot_gives_its_claim_back_first() {
    let (mut node, _queue) = node();
    let kubelet = node.start();
    let driver = FakeDraDriver::new(DRIVER);
    let _serving = driver.serve(&root_dir(&node)).unwrap();
    kubelet.add(claiming("a", "u1")).await;
    kubelet.until_phase("a", "Running", 120 * SECOND).await;
    kubelet.stop().await;
    driver.take_calls();
    node.runtime = FakeRuntime::new();

    let kubelet = node.start();
    let mut pod = claiming("a", "u1");
    let selector = [("none".to_owned(), "such".to_owned())].into();
    pod.spec.as_mut().unwrap().node_selector = Some(selector);
    kubelet.add(pod).await;
    kubelet.until_phase("a", "Failed", 10 * SECOND).await;
    // Sooner than claims are released whose pods are gone.
    let claim = vec!["default/shared/uid-of-shared".to_owned()];
    let mut calls = Vec::new();
    until("the release", 45 * SECOND, || {
        calls.extend(driver.take_calls());
        !calls.is_empty()
    })
    .await;
    assert_eq!(calls, [Call::Unprepare(claim)]);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_keeps_its_claim_over_restarts_of_kubelet_and_driver() {
    let (node, _queue) = node();
    let kubelet = node.start();
    let driver = FakeDraDriver::new(DRIVER);
    let serving = driver.serve(&root_dir(&node)).unwrap();
    kubelet.add(claiming("a", "u1")).await;
    kubelet.until_phase("a", "Running", 120 * SECOND).await;
    driver.take_calls();
    kubelet.stop().await;
    serving.kill();

    let kubelet = node.start();
    kubelet.add(claiming("a", "u1")).await;
    kubelet.until_phase("a", "Running", 10 * SECOND).await;
    // A container that ends starts again without the driver.
    let first = node.runtime.running("c")[0].id.clone();
    node.runtime.exit_container(&first, 1);
    let is_new = |node: &Node| node.runtime.running("c").iter().any(|it| it.id != first);
    until("the restart", 60 * SECOND, || is_new(&node)).await;
    assert_eq!(cdi(&node), ["gpu.example/claim=shared"]);
    assert_eq!(driver.take_calls(), []);

    let _serving = driver.serve(&root_dir(&node)).unwrap();
    driver.set_health("shared", HealthStatus::Unhealthy, "hot");
    let expected = json!([{
        "name": "claim:gpu",
        "resources": [{
            "health": "Unhealthy", "message": "hot", "resourceID": "gpu.example/claim=shared",
        }],
    }]);
    until("the health", 60 * SECOND, || {
        health(&kubelet, "a") == expected
    })
    .await;
    kubelet.stop().await;
}
