//! Many sessions, and sessions whose engine or shim is killed.

use std::fs;

use cri_proto::runtime::v1::ContainerState;
use e2e::{
    cri::{Cri, container, sandbox},
    node::Node,
};
use test_run::size;
use tokio::io::AsyncWriteExt as _;

use super::{ALL, BOTH, OUTPUTS, SOON, await_handles, exchange, finish, handles, read_until, say};

/// `SESSIONS=10000` makes a long run; the default tests the same in less time.
#[tokio::test]
async fn sessions_in_a_row_and_at_once_leave_nothing_behind() {
    let sessions = usize::try_from(size::amount("SESSIONS", 60)).unwrap();
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "while :; do echo hello | nc -l -p 7000 -s 127.0.0.1; done";
    let (pod, id) = cri.run_pod("p", &["sh", "-c", script]).await.unwrap();
    let pid = node.shim_pid().unwrap();
    let mut once = async |number: usize| {
        let transport = BOTH[number % 2];
        match number % 3 {
            0 => {
                let forwarder = cri.port_forward(&pod, transport).await.unwrap();
                exchange(forwarder.connect(7000).await.unwrap(), b"").await;
            }
            _ => {
                let command = cri.exec_streams(&id, &["true"], OUTPUTS, transport);
                let (_, _, code) = finish(command.await.unwrap()).await;
                assert_eq!(code, Some(0));
            }
        }
    };
    for number in 0..12 {
        once(number).await;
    }
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .unwrap();
        line.to_owned()
    };
    let (before, memory_before) = (handles(pid), memory());
    for number in 0..sessions {
        once(number).await;
    }
    await_handles(&node, before).await;
    println!("{sessions} sessions: {} then {}", memory_before, memory());

    let mut commands = Vec::new();
    for number in 0..sessions.min(200) {
        let command = cri.exec_streams(&id, &["cat"], ALL, BOTH[number % 2]);
        commands.push(command.await.unwrap());
    }
    for (number, command) in commands.iter_mut().enumerate() {
        say(command, &format!("line {number}\n")).await;
    }
    for (number, command) in commands.iter_mut().enumerate() {
        read_until(command, &format!("line {number}\n")).await;
        command.stdin.take().unwrap().shutdown().await.unwrap();
    }
    for command in commands {
        assert_eq!(finish(command).await.2, Some(0));
    }
    println!("{} sessions at once: {}", sessions.min(200), memory());
}

#[tokio::test]
async fn an_engine_or_a_shim_that_dies_ends_its_sessions_and_nothing_else() {
    let mut node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    let mut config = container("attached", &["cat"]);
    config.stdin = true;
    let attached = cri.create(&pod, config, &sandbox("p")).await.unwrap();
    cri.start(&attached).await.unwrap();
    for transport in BOTH {
        let mut command = cri
            .exec_streams(&id, &["cat"], ALL, transport)
            .await
            .unwrap();
        say(&mut command, "a\n").await;
        read_until(&mut command, "a\n").await;
        node.kill_shim().unwrap();
        command.status.wait().await.unwrap_err();
        node.start_shim().await.unwrap();
        cri = Cri::of(&node).await.unwrap();
        let status = cri.status(&id).await.unwrap();
        assert_eq!(status.state(), ContainerState::ContainerRunning);
    }
    let mut commands = Vec::new();
    for transport in BOTH {
        let mut command = cri
            .exec_streams(&id, &["cat"], ALL, transport)
            .await
            .unwrap();
        say(&mut command, "a\n").await;
        read_until(&mut command, "a\n").await;
        commands.push((transport, command));
        let joined = cri.attach_streams(&attached, ALL, transport).await;
        let mut joined = joined.unwrap();
        say(&mut joined, "b\n").await;
        read_until(&mut joined, "b\n").await;
        commands.push((transport, joined));
    }
    // The containers keep running, so no command has exited.
    node.engine_mut().kill().unwrap();
    for (transport, command) in commands {
        let ended = tokio::time::timeout(SOON, command.status.wait()).await;
        let status = ended.unwrap().unwrap();
        assert!(!status.is_success(), "{transport:?}: {status:?}");
        assert_eq!(status.exit_code(), None, "{transport:?}: {status:?}");
    }
}
