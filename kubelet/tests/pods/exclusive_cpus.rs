//! Containers with CPUs of their own, by the static policy of the CPU manager.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
};

use fake_runtime::{Behaviour, Fault, Times, Verb};
use k8s_openapi::api::core::v1::Pod;
use kubelet::{
    kubelet::options::KubeletOptions,
    sources::update::{PodOperation, PodUpdate, Source},
};
use kubelet_cpu_manager::StaticOptions;
use kubelet_resource_managers::{CpuOptions, ResourceManagerOptions};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::node::{IMAGE, Node, Running, SECOND, pod, until};

fn options(node: &Node) -> KubeletOptions {
    KubeletOptions {
        managers: ResourceManagerOptions {
            cpu: Some(CpuOptions {
                policy: StaticOptions::default(),
                reserved: "0".parse().unwrap(),
                reserved_count: 1,
                keeps_quota: false,
            }),
            ..ResourceManagerOptions::default()
        },
        ..node.options()
    }
}

fn spec(cpu: &str) -> Value {
    let list = json!({"cpu": cpu, "memory": "10Mi"});
    json!({
        "containers": [{
            "name": "c", "image": IMAGE, "resources": {"requests": list, "limits": list}
        }]
    })
}

/// The CPUs and the CPU quota of a pod's container in the runtime.
fn actual(node: &Node, uid: &str) -> (String, i64) {
    let sandboxes = node.runtime.sandboxes().into_iter();
    let of_pod: Vec<String> = sandboxes
        .filter(|sandbox| sandbox.pod_uid() == uid)
        .map(|sandbox| sandbox.id)
        .collect();
    let mut containers = node.runtime.running("c").into_iter();
    let container = containers.find(|container| of_pod.contains(&container.sandbox_id));
    let config = container.map(|container| container.config);
    let resources = config
        .and_then(|it| it.linux?.resources)
        .unwrap_or_default();
    (resources.cpuset_cpus, resources.cpu_quota)
}

#[tokio::test(start_paused = true)]
async fn other_containers_leave_cpus_that_are_given_away_and_get_them_back() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    kubelet.add(pod("other", "u1", json!({}))).await;
    kubelet.until_phase("other", "Running", 3 * SECOND).await;
    assert_eq!(actual(&node, "u1"), ("0-3".to_owned(), 0));

    let own = pod("own", "u2", spec("2"));
    kubelet.add(own.clone()).await;
    kubelet.until_phase("own", "Running", 3 * SECOND).await;
    assert_eq!(actual(&node, "u2"), ("1-2".to_owned(), 0));
    // At once, and not only when the CPUs are compared.
    until("others to leave", SECOND, || actual(&node, "u1").0 == "0,3").await;
    kubelet.remove(own).await;
    let limit = 60 * SECOND;
    until("others to return", limit, || actual(&node, "u1").0 == "0-3").await;
    assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_runs_pods_once_takes_nothing_from_others() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    kubelet.add(pod("own", "u1", spec("1"))).await;
    kubelet.until_phase("own", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    let cancel = CancellationToken::new();
    let (_kubelet, pods) = node.kubelet(options(&node), Arc::new(|| true), &cancel);
    let (updates, receiver) = mpsc::channel(1);
    let update = PodUpdate {
        pods: vec![Arc::new(pod("once", "u2", spec("1")))],
        operation: PodOperation::Add,
        source: Source::File,
    };
    updates.send(update).await.unwrap();
    let results = pods.run_once(receiver).await.unwrap();
    assert_eq!(results[0].result, Ok(()));
    assert_eq!(actual(&node, "u1").0, "1");
    assert_eq!(actual(&node, "u2").0, "2");
}

/// Starts a kubelet that is given these pods at once, after it was without any for a while.
async fn restart(node: &Node, pods: Vec<Pod>) -> Running {
    let kubelet = node.start_with(options(node));
    kubelet.ready.store(false, Ordering::Relaxed);
    tokio::time::sleep(15 * SECOND).await;
    kubelet.add_all(pods).await;
    kubelet.ready.store(true, Ordering::Relaxed);
    kubelet
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_changes_nothing() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    let first = pod("first", "u0", spec("1"));
    kubelet.add(first.clone()).await;
    kubelet.until_phase("first", "Running", 3 * SECOND).await;
    let (own, part) = (pod("own", "u1", spec("1")), pod("part", "u2", json!({})));
    kubelet.add_all(vec![own.clone(), part.clone()]).await;
    kubelet.until_phase("own", "Running", 3 * SECOND).await;
    kubelet.until_phase("part", "Running", 3 * SECOND).await;
    // The CPU that a new pod would get is free again.
    kubelet.remove(first).await;
    until("others to return", 60 * SECOND, || {
        actual(&node, "u2").0 == "0-1,3"
    })
    .await;
    assert_eq!(actual(&node, "u1").0, "2");
    let file = node.dir.path().join("kubelet/cpu_manager_state");
    let is_saved = || {
        fs::read_to_string(&file)
            .unwrap()
            .contains(r#""entries":{"u1":{"c":"2"}}"#)
    };
    until("the state", 20 * SECOND, is_saved).await;
    kubelet.stop().await;

    // Another pod comes first, and with it all others.
    let new = pod("a", "u3", json!({}));
    let kubelet = restart(&node, vec![new, part, own]).await;
    for _ in 0..60 {
        tokio::time::sleep(SECOND).await;
        assert_eq!(actual(&node, "u1").0, "2");
        assert_eq!(actual(&node, "u2").0, "0-1,3");
    }
    assert_eq!(kubelet.phase("own"), "Running");
    assert!(is_saved());
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 4);
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_does_not_get_the_cpus_of_one_that_runs() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    let own = pod("own", "u1", spec("1"));
    kubelet.add(own.clone()).await;
    kubelet.until_phase("own", "Running", 3 * SECOND).await;
    kubelet.stop().await;
    let kubelet = restart(&node, vec![pod("new", "u2", spec("1")), own]).await;
    kubelet.until_phase("new", "Running", 5 * SECOND).await;
    assert_eq!(actual(&node, "u1").0, "1");
    assert_eq!(actual(&node, "u2").0, "2");
}

#[tokio::test(start_paused = true)]
async fn a_changed_static_pod_waits_for_the_cpus_of_the_one_before() {
    let node = Node::new();
    let mut options = options(&node);
    let cpu = options.managers.cpu.as_mut().unwrap();
    (cpu.reserved, cpu.reserved_count) = ("0-2".parse().unwrap(), 3);
    let slow = Behaviour {
        stops_after: Some(10 * SECOND),
        ..Behaviour::default()
    };
    node.runtime.behave("c", slow);
    let kubelet = node.start_with(options);
    let before = pod("web", "u1", spec("1"));
    kubelet.add(before.clone()).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    kubelet.remove(before).await;
    kubelet.add(pod("web", "u2", spec("1"))).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(actual(&node, "u1").0, "3");
    assert_ne!(kubelet.phase("web"), "Failed");
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    assert_eq!(actual(&node, "u2").0, "3");
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_enough_cpus_of_its_own_is_rejected() {
    let node = Node::new();
    let mut options = options(&node);
    let cpu = options.managers.cpu.as_mut().unwrap();
    (cpu.reserved, cpu.reserved_count) = ("0-2".parse().unwrap(), 3);
    let kubelet = node.start_with(options);
    kubelet.add(pod("own", "u1", spec("2"))).await;
    kubelet.until_phase("own", "Failed", 3 * SECOND).await;
    let status = kubelet.status("own");
    assert_eq!(status.reason.as_deref(), Some("UnexpectedAdmissionError"));
    let message = status.message.unwrap_or_default();
    assert!(message.contains("requested=2, available=1"), "{message}");
    // It has nothing: the next one gets the CPU.
    kubelet.add(pod("small", "u2", spec("1"))).await;
    kubelet.until_phase("small", "Running", 3 * SECOND).await;
    assert_eq!(actual(&node, "u2").0, "3");
}

#[tokio::test(start_paused = true)]
async fn a_guaranteed_pod_keeps_its_number_of_cpus() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    kubelet.add(pod("own", "u1", spec("1"))).await;
    kubelet.until_phase("own", "Running", 3 * SECOND).await;
    kubelet.update(pod("own", "u1", spec("2"))).await;
    let refusal = || {
        let conditions = kubelet.status("own").conditions.unwrap_or_default();
        let mut conditions = conditions.into_iter();
        let pending = conditions.find(|it| it.type_ == "PodResizePending")?;
        pending.reason.zip(pending.message)
    };
    until("the refusal", 10 * SECOND, || refusal().is_some()).await;
    let message =
        "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy \"static\"";
    assert_eq!(
        refusal(),
        Some(("Infeasible".to_owned(), message.to_owned()))
    );
    assert_eq!(actual(&node, "u1").0, "1");
}

#[tokio::test(start_paused = true)]
async fn cpus_that_cannot_be_set_are_set_later() {
    let node = Node::new();
    let kubelet = node.start_with(options(&node));
    kubelet.add(pod("other", "u1", json!({}))).await;
    kubelet.until_phase("other", "Running", 3 * SECOND).await;
    let refused = Fault::Error(Status::unavailable("busy"));
    node.runtime
        .fault(Verb::UpdateContainerResources, refused, Times::N(2));
    kubelet.add(pod("own", "u2", spec("1"))).await;
    kubelet.until_phase("own", "Running", 3 * SECOND).await;
    until("others to leave", 40 * SECOND, || {
        actual(&node, "u1").0 == "0,2-3"
    })
    .await;
}
