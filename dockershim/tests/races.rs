//! Calls when the engine is ahead of the shim's model: the operation is done already, its object is
//! gone, or another client is operating on it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use cri_proto::runtime::v1::{
    ContainerState, RemoveContainerRequest, StartContainerRequest, StopContainerRequest,
    runtime_service_server::RuntimeService as _,
};
use support::{FakeEngine, Hang, eventually, node::Node};
use tonic::{Code, Request, Status};

async fn start(node: &Node, id: &str) -> Result<(), Status> {
    let request = StartContainerRequest {
        container_id: id.to_owned(),
    };
    let started = node.service.start_container(Request::new(request)).await;
    started.map(drop)
}

async fn stop(node: &Node, id: &str) -> Result<(), Status> {
    stop_within(node, id, 30).await
}

async fn stop_within(node: &Node, id: &str, timeout: i64) -> Result<(), Status> {
    let request = StopContainerRequest {
        container_id: id.to_owned(),
        timeout,
    };
    let stopped = node.service.stop_container(Request::new(request)).await;
    stopped.map(drop)
}

async fn remove(node: &Node, id: &str) -> Result<(), Status> {
    let request = RemoveContainerRequest {
        container_id: id.to_owned(),
    };
    let removed = node.service.remove_container(Request::new(request)).await;
    removed.map(drop)
}

/// The state of a container, if it exists.
fn state(node: &Node, id: &str) -> Option<ContainerState> {
    let container = node.shim.model.snapshot().container(id);
    container.ok().map(|container| container.status.state())
}

/// A sandbox with a created container and a running one.
async fn set_up() -> (FakeEngine, Node, String, String) {
    let engine = FakeEngine::start();
    let sandbox = engine.add_sandbox("web", true, false);
    let created = engine.add_created_container(&sandbox, "created", "{}");
    let log = engine.socket.with_extension("log");
    let running = engine.add_container(&sandbox, "running", &log);
    let node = Node::synced(&engine).await;
    (engine, node, created, running)
}

#[tokio::test]
async fn what_is_done_already_is_done() {
    let (engine, node, created, running) = set_up().await;
    // The engine answers 304, and no event reported the start.
    engine.start_unseen(&created);
    start(&node, &created).await.unwrap();
    assert_eq!(
        state(&node, &created),
        Some(ContainerState::ContainerRunning)
    );
    engine.end_unseen(&running);
    stop(&node, &running).await.unwrap();
    assert_eq!(
        state(&node, &running),
        Some(ContainerState::ContainerExited)
    );
}

#[tokio::test]
async fn what_is_gone_is_not_found_and_needs_no_end() {
    let (engine, node, created, running) = set_up().await;
    // The engine answers 404, and no event reported the removal.
    engine.remove(&created, false);
    assert_eq!(
        start(&node, &created).await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(state(&node, &created), None);
    engine.remove(&running, false);
    stop(&node, &running).await.unwrap();
    assert_eq!(state(&node, &running), None);

    let (engine, node, created, running) = set_up().await;
    for id in [&created, &running] {
        engine.remove(id, false);
        remove(&node, id).await.unwrap();
        assert_eq!(state(&node, id), None);
    }
}

#[tokio::test]
async fn what_is_being_removed_is_not_started_and_is_removed_once() {
    let (engine, node, created, _) = set_up().await;
    engine.hang(Hang::Remove(created.clone()), true);
    let (first, second, started) = tokio::join!(
        remove(&node, &created),
        async {
            eventually("the first is at it", || {
                engine.calls(&format!("DELETE {created}")) == 1
            })
            .await;
            remove(&node, &created).await
        },
        async {
            eventually("both are at it", || {
                engine.calls(&format!("DELETE {created}")) == 2
            })
            .await;
            let started = start(&node, &created).await;
            engine.hang(Hang::Remove(created.clone()), false);
            started
        }
    );
    first.unwrap();
    second.unwrap();
    assert_eq!(started.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(state(&node, &created), None);
}

#[tokio::test]
async fn a_stop_is_over_when_the_container_ends_by_itself() {
    let (engine, node, _, running) = set_up().await;
    engine.hang(Hang::Stop, true);
    let (stopped, ()) = tokio::join!(stop(&node, &running), async {
        eventually("the stop", || engine.calls("POST stop") == 1).await;
        engine.end(&running);
    });
    stopped.unwrap();
    assert_eq!(
        state(&node, &running),
        Some(ContainerState::ContainerExited)
    );
}

#[tokio::test]
async fn a_renamed_container_is_stopped_and_removed() {
    let (engine, node, created, running) = set_up().await;
    engine.rename(&running, "mine");
    engine.rename(&created, "k8s_running_pod_default_uid_0");
    start(&node, &created).await.unwrap();
    stop(&node, &running).await.unwrap();
    assert!(engine.runs(&created) && !engine.runs(&running));
    remove(&node, &running).await.unwrap();
    assert_eq!(state(&node, &running), None);
    assert_eq!(
        state(&node, &created),
        Some(ContainerState::ContainerRunning)
    );
}

#[tokio::test]
async fn the_stop_signal_is_sent_once() {
    let (engine, node, _, running) = set_up().await;
    // The program takes its time, and the client does not wait for it.
    engine.hang(Hang::Stop, true);
    let first = stop(&node, &running);
    let early = tokio::time::timeout(Duration::from_millis(300), first).await;
    early.unwrap_err();
    assert_eq!(engine.calls("POST stop"), 1);
    stop_within(&node, &running, 1).await.unwrap();
    assert_eq!(engine.calls("POST stop"), 1);
    assert_eq!(engine.calls("POST kill"), 1);
    assert_eq!(
        state(&node, &running),
        Some(ContainerState::ContainerExited)
    );
}
