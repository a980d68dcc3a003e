//! CRI while the engine hangs, breaks, restarts and changes.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use cri_proto::runtime::v1::{
    CheckpointContainerRequest, PodSandboxState, RemovePodSandboxRequest, StopPodSandboxRequest,
    VersionRequest, runtime_service_server::RuntimeService as _,
};
use support::{FakeEngine, Hang, eventually, node::Node};
use tonic::{Code, Request};

use PodSandboxState::{SandboxNotready as NotReady, SandboxReady as Ready};

#[tokio::test]
async fn a_mutation_is_in_the_next_list() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    let id = node.run("web").await.unwrap();
    assert_eq!(node.list().await.unwrap(), [(id.clone(), Ready)]);
    let stop = StopPodSandboxRequest {
        pod_sandbox_id: id.clone(),
    };
    node.service
        .stop_pod_sandbox(Request::new(stop))
        .await
        .unwrap();
    assert_eq!(node.list().await.unwrap(), [(id.clone(), NotReady)]);
    let remove = RemovePodSandboxRequest { pod_sandbox_id: id };
    node.service
        .remove_pod_sandbox(Request::new(remove))
        .await
        .unwrap();
    assert_eq!(node.list().await.unwrap(), []);
}

#[tokio::test]
async fn what_happens_in_the_engine_is_followed() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    let id = engine.add_sandbox("web", true, true);
    let is = |states: Vec<_>| move |node: &Node| node.states() == states;
    let running = is(vec![(id.clone(), Ready)]);
    eventually("the new sandbox is known", || running(&node)).await;
    engine.end(&id);
    let ended = is(vec![(id.clone(), NotReady)]);
    eventually("its end is known", || ended(&node)).await;
    engine.remove(&id, true);
    eventually("its removal is known", || node.states().is_empty()).await;
}

#[tokio::test]
async fn a_list_answers_while_an_inspect_hangs() {
    let engine = FakeEngine::start();
    let hung = engine.add_sandbox("hung", true, false);
    let well = engine.add_sandbox("well", true, false);
    engine.hang(Hang::Inspect(hung.clone()), true);
    // The inspect hangs from the start, so the engine's list has to suffice.
    let node = Node::start(&engine).await;
    tokio::time::timeout(Duration::from_secs(8), async {
        while !node.shim.model.synced() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
    .unwrap();
    let listed = node.list().await.unwrap();
    assert_eq!(listed, [(hung.clone(), Ready), (well.clone(), Ready)]);
    // Other containers are still followed.
    engine.end(&well);
    let both = [(hung.clone(), Ready), (well, NotReady)];
    eventually("the other's end is known", || node.states() == both).await;
}

#[tokio::test]
async fn what_was_missed_while_the_event_stream_was_broken_is_caught_up() {
    let mut engine = FakeEngine::start();
    let gone = engine.add_sandbox("gone", true, false);
    let ended = engine.add_sandbox("ended", true, false);
    let node = Node::synced(&engine).await;
    assert_eq!(node.list().await.unwrap().len(), 2);

    engine.stop();
    for _ in 0..2500 {
        if !node.ready().await.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(node.ready().await, (false, "EngineUnreachable".into()));
    // Lists are served from memory; mutations fail immediately.
    assert_eq!(node.list().await.unwrap().len(), 2);
    assert_eq!(node.run("web").await.unwrap_err().code(), Code::Unavailable);

    engine.remove(&gone, false);
    engine.end(&ended);
    let new = engine.add_sandbox("new", true, false);
    engine.restart();
    eventually("the model has caught up", || node.shim.model.in_step()).await;
    assert_eq!(node.states(), [(ended, NotReady), (new, Ready)]);
    assert!(node.ready().await.0);
}

#[tokio::test]
async fn an_engine_that_comes_later_is_waited_for() {
    let mut engine = FakeEngine::start();
    engine.add_sandbox("web", true, false);
    engine.stop();
    let node = Node::start(&engine).await;
    // An empty list would be wrong, and would make the kubelet start everything again.
    assert_eq!(node.list().await.unwrap_err().code(), Code::Unavailable);
    assert!(!node.ready().await.0);
    let version = Request::new(VersionRequest::default());
    assert!(node.service.version(version).await.is_ok());
    engine.restart();
    eventually("the shim is in sync", || node.shim.model.synced()).await;
    assert_eq!(node.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_request_that_is_dropped_leaves_nothing_half_made() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    engine.hang(Hang::Start, true);
    let dropped = tokio::time::timeout(Duration::from_millis(200), node.run("web")).await;
    assert!(dropped.is_err());
    assert_eq!(engine.names().len(), 1);
    // A second attempt must not mistake the first one's sandbox for a left-over.
    assert_eq!(node.run("web").await.unwrap_err().code(), Code::Aborted);
    engine.hang(Hang::Start, false);
    eventually("the sandbox is whole", || {
        matches!(node.states().as_slice(), [(_, Ready)])
    })
    .await;
    assert_eq!(
        node.run("web").await.unwrap_err().code(),
        Code::AlreadyExists
    );
    assert_eq!(engine.names().len(), 1);
}

#[tokio::test]
async fn what_a_crash_left_half_made_is_removed_and_nothing_else() {
    let engine = FakeEngine::start();
    engine.add_sandbox("half", false, false);
    let running = engine.add_sandbox("running", true, false);
    let node = Node::synced(&engine).await;
    assert_eq!(node.list().await.unwrap(), [(running, Ready)]);
    assert_eq!(engine.names(), ["/k8s_POD_running_default_uid_0"]);
}

#[tokio::test]
async fn lists_do_not_ask_the_engine() {
    let engine = FakeEngine::start();
    engine.add_sandbox("web", true, false);
    let node = Node::synced(&engine).await;
    let calls = || engine.calls("GET json");
    let before = calls();
    for _ in 0..100 {
        node.list().await.unwrap();
    }
    assert_eq!(calls(), before);
}

#[tokio::test]
async fn logs_that_cannot_be_completed_hold_up_their_own_containers_alone() {
    let engine = FakeEngine::start();
    let sandbox = engine.add_sandbox("web", true, false);
    let node = Node::synced(&engine).await;
    // No log can be created below a regular file.
    let bad = engine.socket.with_extension("file");
    std::fs::write(&bad, "").unwrap();
    let ids: Vec<_> = (0..40)
        .map(|n| engine.add_container(&sandbox, &format!("c{n}"), &bad.join("0.log")))
        .collect();
    let count = || node.shim.model.snapshot().containers().count();
    eventually("the containers are known", || count() == ids.len()).await;
    for id in &ids {
        engine.end(id);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    engine.end(&sandbox);
    eventually("the sandbox has ended", || {
        node.states() == [(sandbox.clone(), NotReady)]
    })
    .await;
}

#[tokio::test]
async fn the_log_of_a_container_that_went_unseen_is_closed() {
    let engine = FakeEngine::start();
    let sandbox = engine.add_sandbox("web", true, false);
    let node = Node::synced(&engine).await;
    let id = engine.add_container(&sandbox, "c", &engine.socket.with_extension("log"));
    let log = engine.engine_log(&id);
    let is_open = || {
        let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter_map(|fd| std::fs::read_link(fd.path()).ok())
            .any(|path| path == log)
    };
    eventually("the log is followed", is_open).await;
    engine.remove(&id, false);
    engine.break_events();
    eventually("the container is gone", || {
        node.shim.model.snapshot().containers().count() == 0
    })
    .await;
    eventually("the log is closed", || !is_open()).await;
}

#[tokio::test]
async fn a_left_over_that_cannot_be_removed_does_not_keep_the_shim_from_its_work() {
    let engine = FakeEngine::start();
    let stuck = engine.add_sandbox("stuck", false, false);
    engine.add_sandbox("half", false, false);
    engine.hang(Hang::Remove(stuck.clone()), true);
    let node = Node::start(&engine).await;
    eventually("the other left-over is removed", || {
        engine.names() == ["/k8s_POD_stuck_default_uid_0"]
    })
    .await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    eventually("the shim is in sync", || node.shim.model.synced()).await;
}

#[tokio::test]
async fn a_checkpoint_is_an_archive_and_nothing_else_is_left() {
    let engine = FakeEngine::start();
    let sandbox = engine.add_sandbox("web", true, false);
    let log = engine.socket.with_extension("log");
    let container_id = engine.add_container(&sandbox, "main", &log);
    let node = Node::synced(&engine).await;
    let location = engine.socket.with_extension("tar");
    let request = CheckpointContainerRequest {
        container_id,
        location: location.display().to_string(),
        timeout: 0,
    };
    let answer = node.service.checkpoint_container(Request::new(request));
    answer.await.unwrap();
    let archive = std::fs::read(&location).unwrap();
    let memory = b"memory";
    assert!(archive.windows(memory.len()).any(|bytes| bytes == memory));
    assert_eq!(engine.calls("DELETE checkpoint"), 1);
    let dumps = node.shim.config.root_directory.join("dumps");
    assert_eq!(std::fs::read_dir(dumps).unwrap().count(), 0);
}
