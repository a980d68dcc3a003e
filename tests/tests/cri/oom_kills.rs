//! A container that exceeds its memory limit is reported as `OOMKilled`, even if the engine missed
//! the kill.

use std::time::Duration;

use cri_proto::runtime::v1::{self as cri, ContainerState};
use e2e::{
    cri::{Cri, container, sandbox},
    engine_proxy::EngineProxy,
    node::Node,
};

const LIMIT: i64 = 24 << 20;
const SOON: Duration = Duration::from_secs(60);

/// Runs `command` in its own pod; returns the container's ID.
async fn run(cri: &mut Cri, name: &str, command: &[&str]) -> String {
    let config = sandbox(name);
    let pod = cri.run(&config).await.unwrap();
    let mut container = container("c", command);
    container.linux = Some(cri::LinuxContainerConfig {
        resources: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: LIMIT,
            memory_swap_limit_in_bytes: LIMIT,
            ..Default::default()
        }),
        ..Default::default()
    });
    let id = cri.create(&pod, container, &config).await.unwrap();
    cri.start(&id).await.unwrap();
    id
}

/// The exit code and reason of a container once it has ended.
async fn end(cri: &mut Cri, id: &str) -> (i32, String) {
    let ended = async {
        loop {
            let status = cri.status(id).await.unwrap();
            if status.state() == ContainerState::ContainerExited {
                return (status.exit_code, status.reason);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(SOON, ended).await.unwrap()
}

#[tokio::test]
async fn a_kill_that_the_engine_lost_is_told() {
    let mut node = Node::with_shim().await.unwrap();
    let socket = node.path("proxy.sock");
    let proxy = EngineProxy::that_loses_oom_kills(&node.engine().socket(), &socket).unwrap();
    node.kill_shim().unwrap();
    node.start_shim_on(&proxy.endpoint()).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();

    let greedy = run(&mut cri, "greedy", &["busybox", "tail", "/dev/zero"]).await;
    let killed = run(&mut cri, "killed", &["sleep", "1000"]).await;
    let engine = node.engine().client().unwrap();
    engine.kill_container(&killed, None).await.unwrap();
    let expected = [(&greedy, "OOMKilled"), (&killed, "Error")]
        .map(|(id, reason)| (id, (137, reason.to_owned())));
    for (id, expected) in &expected {
        assert_eq!(end(&mut cri, id).await, *expected);
    }

    node.kill_shim().unwrap();
    node.start_shim_on(&proxy.endpoint()).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for (id, expected) in &expected {
        assert_eq!(end(&mut cri, id).await, *expected);
    }
}
