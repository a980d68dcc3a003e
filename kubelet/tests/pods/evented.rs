//! The runtime's event stream, and relisting without it.

use std::time::Duration;

use fake_runtime::{FakeRuntime, Fault, Times, Verb};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::{
    metrics::{metrics, value},
    node::{Node, Running, SECOND, pod, until},
};

/// The number of sandbox lists, of the whole runtime and of single pods.
fn lists(runtime: &FakeRuntime) -> usize {
    runtime.calls(Verb::ListPodSandbox)
}

async fn running(node: &Node) -> Running {
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    kubelet
}

/// The time until the kubelet notices the exit of a container.
async fn restart_noticed(node: &Node, kubelet: &Running, limit: Duration) -> Duration {
    let restarts = kubelet.container("web").restart_count;
    let begun = Instant::now();
    assert_eq!(node.runtime.exit_container("c", 1), 1);
    while kubelet.container("web").restart_count == restarts
        && kubelet.waiting("web") != "CrashLoopBackOff"
    {
        assert!(begun.elapsed() < limit, "not noticed within {limit:?}");
        sleep(Duration::from_millis(5)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_idle_runtime_is_left_alone() {
    let node = Node::new();
    let _kubelet = running(&node).await;
    sleep(10 * SECOND).await;
    let before = lists(&node.runtime);
    let statuses = node.runtime.calls(Verb::ContainerStatus);
    sleep(600 * SECOND).await;
    let idle = lists(&node.runtime) - before;
    assert!((15..=25).contains(&idle), "{idle} lists in 10 min");
    assert_eq!(node.runtime.calls(Verb::ContainerStatus), statuses);
    assert_eq!(node.runtime.calls(Verb::GetContainerEvents), 1);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_acted_on_at_once() {
    let node = Node::new();
    let kubelet = running(&node).await;
    sleep(100 * SECOND).await;
    let took = restart_noticed(&node, &kubelet, SECOND).await;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_change_is_read_without_listing_everything() {
    let node = Node::new();
    let kubelet = running(&node).await;
    sleep(35 * SECOND).await;
    for n in 0..20 {
        kubelet
            .add(pod(&format!("p{n}"), &format!("v{n}"), json!({})))
            .await;
    }
    let begun = Instant::now();
    until("all pods", 5 * SECOND, || {
        (0..20).all(|n| kubelet.phase(&format!("p{n}")) == "Running")
    })
    .await;
    assert!(begun.elapsed() < SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_without_events_is_listed() {
    let node = Node::new();
    let none = Fault::Error(Status::unimplemented("no events here"));
    node.runtime
        .fault(Verb::GetContainerEvents, none, Times::Always);
    let kubelet = running(&node).await;
    sleep(10 * SECOND).await;
    let before = lists(&node.runtime);
    sleep(60 * SECOND).await;
    let listed = lists(&node.runtime) - before;
    assert!((58..=66).contains(&listed), "{listed} lists a minute");
    restart_noticed(&node, &kubelet, 2 * SECOND).await;

    // The kubelet notices that the runtime was replaced by one with events.
    node.runtime.clear_faults();
    sleep(500 * SECOND).await;
    let took = restart_noticed(&node, &kubelet, SECOND).await;
    assert!(took < Duration::from_millis(100), "{took:?}");
    let before = lists(&node.runtime);
    sleep(60 * SECOND).await;
    assert!(lists(&node.runtime) - before <= 10);
}

/// The number of event streams that the kubelet counts as connected.
fn streams(kubelet: &Running) -> Option<f64> {
    let name = "kubelet_evented_pleg_connection_success_count";
    value(&metrics(kubelet), name)
}

#[tokio::test(start_paused = true)]
async fn a_runtime_whose_events_are_off_is_listed() {
    let node = Node::new();
    node.runtime.switch_events_off(true);
    let kubelet = running(&node).await;
    sleep(600 * SECOND).await;
    assert_eq!(streams(&kubelet), Some(0.0));
    restart_noticed(&node, &kubelet, 2 * SECOND).await;
    node.runtime.switch_events_off(false);
    sleep(500 * SECOND).await;
    assert_eq!(streams(&kubelet), Some(1.0));
    let took = restart_noticed(&node, &kubelet, SECOND).await;
    assert!(took < Duration::from_millis(100), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_broken_stream_loses_nothing_and_comes_back() {
    let node = Node::new();
    let kubelet = running(&node).await;
    sleep(100 * SECOND).await;
    // Without a stream, lists detect changes.
    node.runtime.mute_events(true);
    node.runtime.break_events();
    let away = Fault::Error(Status::unavailable("restarting"));
    node.runtime
        .fault(Verb::GetContainerEvents, away, Times::N(4));
    restart_noticed(&node, &kubelet, 2 * SECOND).await;
    node.runtime.mute_events(false);
    sleep(400 * SECOND).await;
    let streams = node.runtime.calls(Verb::GetContainerEvents);
    assert!((6..=8).contains(&streams), "{streams} calls for events");
    let before = lists(&node.runtime);
    sleep(60 * SECOND).await;
    assert!(lists(&node.runtime) - before <= 10, "lists seldom again");
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_accepts_late_has_events() {
    // Some servers send the response headers only with the first event.
    let node = Node::new();
    node.runtime.fault(
        Verb::GetContainerEvents,
        Fault::Delay(300 * SECOND),
        Times::Once,
    );
    let kubelet = running(&node).await;
    sleep(20 * SECOND).await;
    let before = lists(&node.runtime);
    sleep(60 * SECOND).await;
    assert!(lists(&node.runtime) - before <= 5);
    drop(kubelet);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_tells_nothing_is_not_trusted() {
    let node = Node::new();
    let kubelet = running(&node).await;
    sleep(100 * SECOND).await;
    node.runtime.mute_events(true);
    restart_noticed(&node, &kubelet, 32 * SECOND).await;
    sleep(5 * SECOND).await;
    // From now on the runtime is listed although the stream is connected.
    let mut slow = 0;
    for _ in 0..5 {
        until("the next run", 400 * SECOND, || {
            node.runtime.running("c").len() == 1
        })
        .await;
        sleep(SECOND).await;
        let took = restart_noticed(&node, &kubelet, 32 * SECOND).await;
        slow += usize::from(took > 2 * SECOND);
    }
    assert!(slow <= 2, "{slow} of 5 were noticed late");
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_no_kubelet_labelled_is_ended() {
    let node = Node::new();
    node.runtime.add_sandbox_of("stray", "s1");
    let kubelet = node.start();
    until("the stray sandbox to go", 60 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    drop(kubelet);
}

// Real time, because consecutive readings of the paused clock are often equal.
#[tokio::test]
async fn pods_run_and_restart_by_a_clock_that_goes() {
    let node = Node::new();
    let kubelet = running(&node).await;
    restart_noticed(&node, &kubelet, 5 * SECOND).await;
}
