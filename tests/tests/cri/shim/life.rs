//! The life of a pod and its containers, and commands in them.

use cri_proto::runtime::v1::{ContainerState, PodSandboxState};
use e2e::{
    cri::{Cri, container, sandbox},
    node::Node,
};
use tonic::Code;

use super::SOON;

#[tokio::test]
async fn a_pod_lives_from_run_to_remove() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri
        .run_pod("web", &["sh", "-c", "exec sleep 1000"])
        .await
        .unwrap();

    // Each mutation is visible to the next call.
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerRunning);
    assert!(status.started_at >= status.created_at && status.created_at > 0);
    let pod_status = cri.pod_status(&pod).await.unwrap();
    assert_eq!(pod_status.state(), PodSandboxState::SandboxReady);
    let ip = pod_status.network.unwrap().ip;
    assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{ip}");

    cri.stop(&id, 1).await.unwrap();
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert!(status.finished_at >= status.started_at);

    cri.remove(&id).await.unwrap();
    assert_eq!(cri.status(&id).await.unwrap_err().code(), Code::NotFound);
    cri.stop_pod(&pod).await.unwrap();
    assert_eq!(
        cri.pod_status(&pod).await.unwrap().state(),
        PodSandboxState::SandboxNotready
    );
    cri.remove_pod(&pod).await.unwrap();
    assert_eq!(
        cri.pod_status(&pod).await.unwrap_err().code(),
        Code::NotFound
    );
    // All of these calls are idempotent.
    cri.stop(&id, 1).await.unwrap();
    cri.remove(&id).await.unwrap();
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn exit_codes_and_reasons_are_told() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for (name, command, code, reason) in [
        ("fine", ["sh", "-c", "exit 0"], 0, "Completed"),
        ("bad", ["sh", "-c", "exit 42"], 42, "Error"),
        ("killed", ["sh", "-c", "kill -9 $$"], 137, "Error"),
    ] {
        let (_, id) = cri.run_pod(name, &command).await.unwrap();
        let mut watcher = cri.clone();
        node.await_until("exited", SOON, async |_| {
            Ok(watcher.clone().status(&id).await?.state() == ContainerState::ContainerExited)
        })
        .await
        .unwrap();
        let status = watcher.status(&id).await.unwrap();
        assert_eq!(
            (status.exit_code, status.reason.as_str()),
            (code, reason),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_command_that_is_not_there_is_an_error_of_the_start() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let config = sandbox("nope");
    let pod = cri.run(&config).await.unwrap();
    let id = cri
        .create(&pod, container("main", &["/no/such/program"]), &config)
        .await
        .unwrap();
    let error = cri.start(&id).await.unwrap_err();
    assert!(error.message().contains("/no/such/program"), "{error:?}");
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(status.reason, "ContainerCannotRun");
    assert_ne!(status.exit_code, 0);
}

#[tokio::test]
async fn exec_sync_gives_output_exit_code_and_keeps_its_deadline() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let done = cri
        .exec(&id, &["sh", "-c", "echo out; echo err >&2; exit 3"], 10)
        .await
        .unwrap();
    assert_eq!(
        (&done.stdout[..], &done.stderr[..], done.exit_code),
        (&b"out\n"[..], &b"err\n"[..], 3)
    );
    let late = cri.exec(&id, &["sleep", "500"], 1).await.unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let mut watcher = cri.clone();
    node.await_until("the late command is gone", SOON, async |_| {
        let listed = watcher.clone().exec(&id, &["ps"], 10).await?;
        Ok(!String::from_utf8_lossy(&listed.stdout).contains("sleep 500"))
    })
    .await
    .unwrap();
    watcher.stop(&id, 0).await.unwrap();
    let stopped = watcher.exec(&id, &["true"], 10).await.unwrap_err();
    assert_ne!(stopped.code(), Code::Ok);
    assert!(stopped.message().contains(&id[..12]), "{stopped:?}");
}
