//! Containers in the CRI's unknown state.

use cri_proto::runtime::v1::ContainerState;
use fake_runtime::{Behaviour, Fault, Times, Verb};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tonic::Status;

use crate::node::{IMAGE, Node, SECOND, pod, until};

/// A container that ignores the stop signal.
fn stubborn() -> Behaviour {
    Behaviour {
        stops_after: None,
        ..Behaviour::default()
    }
}

/// The runtime restarts and loses track of a container.
fn lose_sight_of(node: &Node, container: &str) {
    assert_eq!(node.runtime.lose_sight_of(container), 1);
    node.runtime.break_events();
}

#[tokio::test(start_paused = true)]
async fn one_that_may_run_is_ended_before_another_is_started() {
    for kind in ["containers", "initContainers"] {
        let node = Node::new();
        node.runtime.behave("lost", stubborn());
        let kubelet = node.start();
        let lost = json!([{"name": "lost", "image": IMAGE}]);
        let mut spec = json!({"terminationGracePeriodSeconds": 20});
        spec[kind] = lost;
        kubelet.add(pod("web", "u1", spec)).await;
        until("its run", 5 * SECOND, || {
            node.runtime.running("lost").len() == 1
        })
        .await;
        sleep(2 * SECOND).await;
        let refused = Fault::Error(Status::internal("on purpose"));
        node.runtime
            .fault(Verb::StopContainer, refused, Times::N(2));
        lose_sight_of(&node, "lost");
        until("another run", 90 * SECOND, || {
            let runs = node.runtime.running("lost");
            runs.len() == 1 && runs[0].attempt() == 1
        })
        .await;
        assert_eq!(node.runtime.started_twice(), Vec::<String>::new(), "{kind}");
        assert_eq!(node.runtime.calls(Verb::StopContainer), 3, "{kind}");
        // One restart, regardless of the number of attempts.
        sleep(60 * SECOND).await;
        assert_eq!(node.runtime.creations("u1", "lost"), 2, "{kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn its_end_is_shown_as_one_that_nobody_saw() {
    let node = Node::new();
    node.runtime.behave("c", stubborn());
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    lose_sight_of(&node, "c");
    let ended = || {
        let state = kubelet.container("web").state.unwrap_or_default();
        state.terminated
    };
    until("its status", 5 * SECOND, || ended().is_some()).await;
    let ended = ended().unwrap();
    assert_eq!(ended.exit_code, 137);
    assert_eq!(ended.reason.as_deref(), Some("ContainerStatusUnknown"));
    assert_eq!(kubelet.container("web").restart_count, 1);
    until("another run", 60 * SECOND, || {
        let container = kubelet.container("web");
        container.ready && container.restart_count == 1
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_one_is_gone_only_when_it_has_ended() {
    let node = Node::new();
    node.runtime.behave("c", stubborn());
    let kubelet = node.start();
    let web = pod("web", "u1", json!({}));
    kubelet.add(web.clone()).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    kubelet.remove(web).await;
    until("its stop", 5 * SECOND, || {
        node.runtime.calls(Verb::StopContainer) == 1
    })
    .await;
    let begun = Instant::now();
    lose_sight_of(&node, "c");
    sleep(25 * SECOND).await;
    let runs = node.runtime.running("c");
    assert_eq!(runs.len(), 1, "it has thirty seconds");
    assert_eq!(runs[0].reported_state(), ContainerState::ContainerUnknown);
    assert!(!kubelet.kubelet.pods().is_empty() || !node.ready_sandboxes().is_empty());
    until("its end", 10 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    assert!(begun.elapsed() >= 29 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn one_that_another_kubelet_left_is_ended_too() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    kubelet.stop().await;
    lose_sight_of(&node, "c");
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    until("another run", 30 * SECOND, || {
        kubelet.container("web").ready && node.runtime.running("c")[0].attempt() == 1
    })
    .await;
    assert_eq!(node.runtime.started_twice(), Vec::<String>::new());
    assert_eq!(node.runtime.creations("u1", "c"), 2);
}
