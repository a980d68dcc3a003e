//! Volume expansion on the node, and the status of the claims.

use cri_proto::csi::v1::node_service_capability::rpc::Type as Capability;
use kubelet_api_client::events::{EventQueue, EventRecorder};
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::Status;

use super::{Cluster, claimed, gone};
use crate::node::{SECOND, until};

const PENDING: &str = "NodeResizePending";

/// A cluster with a volume of 2 GiB whose claim has this status, and its events.
fn grown(mode: &str, status: Value) -> (Cluster, EventQueue) {
    let mut on = Cluster::new();
    let (recorder, queue) = EventRecorder::new("node");
    on.node.events = recorder;
    put(&on, "2Gi", mode, status);
    (on, queue)
}

fn put(on: &Cluster, capacity: &str, mode: &str, status: Value) {
    let volume = json!({"capacity": {"storage": capacity}, "accessModes": [mode]});
    on.put_volume(volume, "1Gi");
    let mut status = status;
    status["phase"] = json!("Bound");
    let claim = json!({
        "metadata": {"namespace": "default", "name": "data"},
        "spec": {
            "volumeName": "pv", "accessModes": [mode],
            "resources": {"requests": {"storage": capacity}}
        },
        "status": status
    });
    on.objects.put("persistentvolumeclaim", claim);
}

/// The status of a claim whose volume this node must expand.
fn ours() -> Value {
    json!({
        "capacity": {"storage": "1Gi"},
        "allocatedResources": {"storage": "2Gi"},
        "allocatedResourceStatuses": {"storage": PENDING},
        "conditions": [
            {"type": "FileSystemResizePending", "status": "True"},
            {"type": "Other", "status": "True"}
        ]
    })
}

fn claim(on: &Cluster) -> Value {
    on.objects
        .get_raw("persistentvolumeclaim", "default", "data")["status"]
        .clone()
}

fn stage(on: &Cluster) -> Value {
    claim(on)["allocatedResourceStatuses"]["storage"].clone()
}

fn expansions(on: &Cluster) -> usize {
    let verbs = on.driver.verbs();
    verbs.iter().filter(|verb| **verb == "Expand").count()
}

/// The number of expansions whose success events report, for both the pod and its claim.
fn successes(queue: &mut EventQueue) -> usize {
    let events = std::iter::from_fn(|| queue.try_recv().ok());
    let successes =
        events.filter(|event| event.reason.as_deref() == Some("FileSystemResizeSuccessful"));
    let of: Vec<_> = successes
        .filter_map(|event| event.involved_object.kind)
        .collect();
    let claims = of
        .iter()
        .filter(|kind| *kind == "PersistentVolumeClaim")
        .count();
    assert_eq!(of.len(), 2 * claims, "{of:?}");
    claims
}

#[tokio::test(start_paused = true)]
async fn the_claim_is_told_that_its_volume_grew() {
    let (on, mut events) = grown("ReadWriteOnce", ours());
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    assert_eq!(
        claim(&on),
        json!({
            "phase": "Bound",
            "capacity": {"storage": "2Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "conditions": [{"type": "Other", "status": "True"}]
        })
    );
    let patches = on.objects.patches();
    assert_eq!(patches.len(), 2, "{patches:?}");
    assert_eq!(
        patches[0]["status"],
        json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}})
    );
    assert_eq!(successes(&mut events), 1);
    kubelet.stop().await;

    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!((expansions(&on), successes(&mut events)), (1, 0));

    // The volume grows again while it is in use.
    let mut more = ours();
    more["capacity"] = json!({"storage": "2Gi"});
    more["allocatedResources"] = json!({"storage": "3Gi"});
    put(&on, "3Gi", "ReadWriteOnce", more);
    until("the claim to know", 300 * SECOND, || {
        claim(&on)["capacity"]["storage"] == "3Gi"
    })
    .await;
    sleep(200 * SECOND).await;
    assert_eq!((expansions(&on), successes(&mut events)), (2, 1));
    assert_eq!(on.node.runtime.containers().len(), 1);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_an_older_resizer_is_told_too() {
    let (on, mut events) = grown("ReadWriteOnce", json!({"capacity": {"storage": "1Gi"}}));
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    assert_eq!(claim(&on)["capacity"]["storage"], "2Gi");
    assert_eq!((expansions(&on), successes(&mut events)), (1, 1));
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_cannot_do_it_on_a_node_tells_no_success() {
    let (on, mut events) = grown("ReadWriteOnce", json!({"capacity": {"storage": "1Gi"}}));
    on.driver
        .set_capabilities(&[Capability::StageUnstageVolume]);
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(successes(&mut events), 0);
    assert_eq!(claim(&on)["capacity"]["storage"], "1Gi");
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_cannot_grow_while_it_is_used_is_used() {
    let (on, mut events) = grown("ReadWriteOnce", ours());
    let _driver = on.serve();
    on.driver
        .fail("Expand", Status::failed_precondition("in use"));
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!((expansions(&on), successes(&mut events)), (1, 0));
    assert_eq!(claim(&on)["capacity"]["storage"], "1Gi");
    let conditions = &claim(&on)["conditions"];
    assert_eq!(conditions[2]["type"], "NodeResizeError", "{conditions}");
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_infeasible_is_told_and_not_tried_again() {
    let (on, mut events) = grown("ReadWriteOnce", ours());
    let _driver = on.serve();
    on.driver.fail("Expand", Status::out_of_range("too large"));
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(stage(&on), "NodeResizeInfeasible");
    let condition = claim(&on)["conditions"][2].clone();
    assert_eq!(condition["type"], "NodeResizeError");
    let message = condition["message"].as_str().unwrap();
    assert!(message.contains("too large"), "{message}");
    assert_eq!((expansions(&on), successes(&mut events)), (1, 0));
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_final_is_tried_again() {
    let (on, mut events) = grown("ReadWriteOnce", ours());
    let _driver = on.serve();
    on.driver.fail("Expand", Status::unavailable("wait"));
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    until("two attempts", 60 * SECOND, || expansions(&on) > 1).await;
    assert_eq!(stage(&on), "NodeResizeInProgress");
    assert_eq!(kubelet.waiting("a"), "ContainerCreating");
    on.driver.clear_faults();
    kubelet.until_phase("a", "Running", 300 * SECOND).await;
    assert_eq!(claim(&on)["capacity"]["storage"], "2Gi");
    assert_eq!(successes(&mut events), 1);
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_many_nodes_grows_on_each() {
    let known = json!({"capacity": {"storage": "1Gi"}});
    let (on, _events) = grown("ReadWriteMany", known);
    put(
        &on,
        "1Gi",
        "ReadWriteMany",
        json!({"capacity": {"storage": "1Gi"}}),
    );
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    kubelet.add(claimed("b")).await;
    kubelet.until_phase("b", "Running", 60 * SECOND).await;
    // Another node has already updated the claim.
    let known = json!({
        "capacity": {"storage": "2Gi"}, "allocatedResources": {"storage": "2Gi"}
    });
    put(&on, "2Gi", "ReadWriteMany", known);
    until("its growth here", 300 * SECOND, || expansions(&on) > 0).await;
    sleep(200 * SECOND).await;
    assert_eq!(expansions(&on), 1);
    assert_eq!(on.objects.patches(), [Value::Null; 0]);
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_volume_that_nodes_cannot_grow_keeps_its_capacity() {
    let on = Cluster::new();
    put(&on, "2Gi", "ReadWriteOnce", ours());
    let status = claim(&on);
    let dir = on.path("disk");
    std::fs::create_dir_all(&dir).unwrap();
    let volume = json!({
        "metadata": {"name": "pv"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "2Gi"},
            "claimRef": {"namespace": "default", "name": "data", "uid": "uid-of-data"},
            "hostPath": {"path": dir}
        }
    });
    on.objects.put("persistentvolume", volume);
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 60 * SECOND).await;
    sleep(200 * SECOND).await;
    assert_eq!(claim(&on), status);
}
