//! Resizes that compete for the node's resources.

use std::{sync::atomic::Ordering, time::Duration};

use fake_runtime::Verb;
use k8s_openapi::api::core::v1::{Event, Pod, PodCondition};
use kubelet::{config::reservation::reservation, kubelet::options::KubeletOptions};
use kubelet_api_client::events::{EventQueue, EventRecorder};
use kubelet_host::machine::Machine;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::{
    metrics::{metrics, value},
    node::{IMAGE, Node, Running, SECOND, pod, until},
};

/// More than two periods of the pod checks.
const A_WHILE: Duration = Duration::from_secs(150);

/// A node with one allocatable CPU, regardless of the machine.
fn one_cpu(node: &Node) -> KubeletOptions {
    let reserved = Machine::read().cpus * 1000 - 1000;
    let config = json!({"systemReserved": {"cpu": format!("{reserved}m")}});
    let mut options = node.options();
    options.capacity.reservation = reservation(&serde_json::from_value(config).unwrap());
    options
}

/// A node whose events are collected.
fn told_node() -> (Node, EventQueue) {
    let mut node = Node::new();
    let (recorder, queue) = EventRecorder::new("node");
    node.events = recorder;
    (node, queue)
}

/// Reasons and messages of the resize events since the last call.
fn told(queue: &mut EventQueue) -> Vec<(String, String)> {
    let text = |text: Option<String>| text.unwrap_or_default();
    let line = |event: Event| (text(event.reason), text(event.message));
    std::iter::from_fn(|| queue.try_recv().ok())
        .map(line)
        .filter(|(reason, _)| reason.starts_with("Resize") || reason == "Preempting")
        .collect()
}

/// A pod of the API server with one container of the pod's name, which requests `cpu` thousandths
/// of a CPU.
fn sized(name: &str, cpu: i64) -> Pod {
    with(name, json!({"requests": {"cpu": format!("{cpu}m")}}))
}

fn with(name: &str, resources: Value) -> Pod {
    let containers = json!([{"name": name, "image": IMAGE, "resources": resources}]);
    let mut pod = pod(name, name, json!({"containers": containers}));
    pod.metadata.annotations = None;
    pod
}

/// A pod of QoS class Guaranteed: requests equal limits.
fn guaranteed(name: &str, cpu: i64) -> Pod {
    let list = json!({"cpu": format!("{cpu}m"), "memory": "1Mi"});
    with(name, json!({"requests": list, "limits": list}))
}

fn of_priority(mut pod: Pod, priority: i32) -> Pod {
    pod.spec.as_mut().unwrap().priority = Some(priority);
    pod
}

/// The pod's container's CPU in the runtime, in thousandths.
fn has(node: &Node, name: &str) -> i64 {
    let containers = node.runtime.running(name);
    let linux = containers.first().and_then(|c| c.config.linux.clone());
    let resources = linux.and_then(|linux| linux.resources);
    let shares = resources.map_or(0, |resources| resources.cpu_shares);
    // Shares are rounded down.
    (shares * 1000 + 1023) / 1024
}

fn pending(kubelet: &Running, name: &str) -> Option<PodCondition> {
    let conditions = kubelet.status(name).conditions.unwrap_or_default();
    let mut pending = conditions
        .into_iter()
        .filter(|c| c.type_ == "PodResizePending");
    pending.next()
}

fn why_pending(kubelet: &Running, name: &str) -> (String, String) {
    let pending = pending(kubelet, name).unwrap_or_default();
    (
        pending.reason.unwrap_or_default(),
        pending.message.unwrap_or_default(),
    )
}

async fn run(kubelet: &Running, pods: Vec<Pod>) {
    let names: Vec<String> = pods
        .iter()
        .filter_map(|p| p.metadata.name.clone())
        .collect();
    kubelet.add_all(pods).await;
    for name in names {
        kubelet.until_phase(&name, "Running", 5 * SECOND).await;
    }
}

async fn until_deferred(kubelet: &Running, name: &str) {
    until("a resize to be deferred", 5 * SECOND, || {
        why_pending(kubelet, name).0 == "Deferred"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_no_pod_grows_before_all_are_known() {
    let node = Node::new();
    let kubelet = node.start_with(one_cpu(&node));
    run(&kubelet, vec![sized("a", 400), sized("b", 400)]).await;
    kubelet.update(sized("a", 700)).await;
    until_deferred(&kubelet, "a").await;
    kubelet.stop().await;

    let kubelet = node.start_with(one_cpu(&node));
    kubelet.ready.store(false, Ordering::Relaxed);
    run(&kubelet, vec![sized("a", 700)]).await;
    sleep(A_WHILE).await;
    assert_eq!(has(&node, "a"), 400, "b is not known yet");
    run(&kubelet, vec![sized("b", 400)]).await;
    kubelet.ready.store(true, Ordering::Relaxed);
    until_deferred(&kubelet, "a").await;
    sleep(A_WHILE).await;
    assert_eq!(has(&node, "a"), 400);

    kubelet.remove(sized("b", 400)).await;
    until("the room of the pod that went", 40 * SECOND, || {
        has(&node, "a") == 700
    })
    .await;
    until("its end", 5 * SECOND, || pending(&kubelet, "a").is_none()).await;
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_asked_for_while_the_kubelet_was_away_ends_no_pod() {
    let node = Node::new();
    let kubelet = node.start_with(one_cpu(&node));
    run(&kubelet, vec![sized("a", 400)]).await;
    kubelet.stop().await;

    let kubelet = node.start_with(one_cpu(&node));
    run(&kubelet, vec![sized("a", 1500)]).await;
    until("why not", 5 * SECOND, || pending(&kubelet, "a").is_some()).await;
    assert_eq!(has(&node, "a"), 400);
    assert_eq!(node.runtime.calls(Verb::CreateContainer), 1);
}

#[tokio::test(start_paused = true)]
async fn growth_is_measured_against_what_the_node_has_for_pods() {
    let (node, mut queue) = told_node();
    let kubelet = node.start_with(one_cpu(&node));
    run(&kubelet, vec![sized("a", 400), sized("b", 400)]).await;
    kubelet.update(sized("a", 700)).await;
    until_deferred(&kubelet, "a").await;
    let message =
        "Node didn't have enough resource: cpu, requested: 700, used: 400, capacity: 1000";
    assert_eq!(why_pending(&kubelet, "a").1, message);

    kubelet.update(sized("a", 1500)).await;
    until("why never", 5 * SECOND, || {
        why_pending(&kubelet, "a").0 == "Infeasible"
    })
    .await;
    let message = "Node didn't have enough capacity: cpu, requested: 1500, capacity: 1000";
    assert_eq!(why_pending(&kubelet, "a").1, message);
    assert_eq!(has(&node, "a"), 400);
    let told = told(&mut queue);
    let reasons: Vec<&str> = told.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["ResizeDeferred", "ResizeInfeasible"]);
    assert!(
        told[1].1.starts_with("Pod resize Infeasible: {"),
        "{}",
        told[1].1
    );
    assert!(told[1].1.contains(message), "{}", told[1].1);

    kubelet.update(sized("a", 600)).await;
    until("the resize", 5 * SECOND, || has(&node, "a") == 600).await;
    until("its end", 5 * SECOND, || pending(&kubelet, "a").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn the_room_of_pods_that_go_is_for_the_important_then_the_waiting() {
    let node = Node::new();
    let kubelet = node.start_with(one_cpu(&node));
    let pods = |cpu| {
        [
            sized("late", cpu),
            sized("early", cpu),
            guaranteed("guaranteed", cpu),
            of_priority(sized("important", cpu), 10),
        ]
    };
    let mut all = pods(100).to_vec();
    all.push(sized("room", 500));
    run(&kubelet, all).await;
    let [late, early, guaranteed, important] = pods(700);
    for pod in [&early, &late, &guaranteed, &important] {
        kubelet.update(pod.clone()).await;
        until_deferred(&kubelet, pod.metadata.name.as_deref().unwrap()).await;
    }
    let mut last = sized("room", 500);
    for next in [important, guaranteed, early, late] {
        kubelet.remove(last).await;
        let name = next.metadata.name.clone().unwrap();
        until(&name, 40 * SECOND, || has(&node, &name) == 700).await;
        let names = ["important", "guaranteed", "early", "late"].into_iter();
        let large: i64 = names.map(|name| has(&node, name) / 700).sum();
        assert_eq!(large, 1, "{name} alone has the room");
        last = next;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_shrinks_makes_room_for_one_that_waits() {
    let node = Node::new();
    let kubelet = node.start_with(one_cpu(&node));
    run(&kubelet, vec![sized("a", 600), sized("b", 300)]).await;
    kubelet.update(sized("b", 500)).await;
    until_deferred(&kubelet, "b").await;
    kubelet.update(sized("a", 400)).await;
    until("both", 5 * SECOND, || {
        (has(&node, "a"), has(&node, "b")) == (400, 500)
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_critical_pod_grows_at_the_cost_of_others() {
    let (node, mut queue) = told_node();
    let kubelet = node.start_with(one_cpu(&node));
    let critical = |cpu| of_priority(sized("critical", cpu), 2_000_000_000);
    run(&kubelet, vec![critical(400), sized("b", 500)]).await;
    kubelet.update(critical(700)).await;
    until("its growth", 40 * SECOND, || has(&node, "critical") == 700).await;
    assert_eq!(kubelet.phase("b"), "Failed");
    let told = told(&mut queue);
    let preempted = told.iter().filter(|(reason, _)| reason == "Preempting");
    assert_eq!(preempted.count(), 1, "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn resizes_are_counted() {
    let node = Node::new();
    let kubelet = node.start_with(one_cpu(&node));
    run(&kubelet, vec![sized("a", 400), sized("b", 400)]).await;
    let of = |series: &str| value(&metrics(&kubelet), &format!("kubelet_{series}"));
    assert_eq!(of("pod_in_progress_resizes"), Some(0.0));
    kubelet.update(sized("a", 700)).await;
    until_deferred(&kubelet, "a").await;
    assert_eq!(of("pod_pending_resizes{reason=\"deferred\"}"), Some(1.0));
    kubelet.update(sized("b", 2000)).await;
    until("an infeasible resize", 5 * SECOND, || {
        why_pending(&kubelet, "b").0 == "Infeasible"
    })
    .await;
    kubelet.update(sized("b", 200)).await;
    until("the resizes", 5 * SECOND, || {
        has(&node, "a") == 700 && has(&node, "b") == 200
    })
    .await;
    for (series, expected) in [
        ("pod_pending_resizes{reason=\"deferred\"}", None),
        (
            "pod_infeasible_resizes_total{reason_detail=\"insufficient_node_allocatable\"}",
            Some(1.0),
        ),
        (
            "pod_deferred_accepted_resizes_total{retry_trigger=\"pod_updated\"}",
            Some(1.0),
        ),
        (
            "container_requested_resizes_total{resource=\"cpu\",requirement=\"requests\",operation=\"increase\"}",
            Some(2.0),
        ),
        (
            "container_requested_resizes_total{resource=\"cpu\",requirement=\"requests\",operation=\"decrease\"}",
            Some(1.0),
        ),
        (
            "pod_resize_duration_milliseconds_count{success=\"true\"}",
            Some(2.0),
        ),
    ] {
        assert_eq!(of(series), expected, "{series}");
    }
}
