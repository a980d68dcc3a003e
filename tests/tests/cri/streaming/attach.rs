//! Attach: joining a running container.

use cri_proto::runtime::v1::ContainerState;
use e2e::{
    cri::{Cri, container, sandbox},
    node::Node,
};
use tokio::io::AsyncWriteExt as _;

use super::{ALL, BOTH, SOON, TTY, read_until, say};

#[tokio::test]
async fn attach_joins_the_container_and_leaves_it_running() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = cri.run(&sandbox("p")).await.unwrap();
    let script = "while read line; do [ $line = end ] && exit 3; echo \"got $line\"; done";
    for (number, transport) in BOTH.into_iter().enumerate() {
        for tty in [false, true] {
            let mut config = container(&format!("c{number}-{tty}"), &["sh", "-c", script]);
            (config.stdin, config.tty) = (true, tty);
            let id = cri.create(&pod, config, &sandbox("p")).await.unwrap();
            cri.start(&id).await.unwrap();
            let requested = if tty { TTY } else { ALL };

            let mut first = cri.attach_streams(&id, requested, transport).await.unwrap();
            say(&mut first, "one\n").await;
            read_until(&mut first, "got one").await;
            drop(first);

            let mut second = cri.attach_streams(&id, requested, transport).await.unwrap();
            say(&mut second, "two\n").await;
            let text = read_until(&mut second, "got two").await;
            assert!(!text.contains("one"), "{text:?}");
            say(&mut second, "end\n").await;
            assert!(second.status.wait().await.unwrap().is_success());
            node.await_until("exited", SOON, async |node| {
                let status = Cri::of(node).await?.status(&id).await?;
                Ok(status.state() == ContainerState::ContainerExited && status.exit_code == 3)
            })
            .await
            .unwrap();
        }
    }
}

#[tokio::test]
async fn the_end_of_a_clients_input_ends_its_attach_and_not_the_container() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = cri.run(&sandbox("p")).await.unwrap();
    let mut config = container("c", &["cat"]);
    config.stdin = true;
    let id = cri.create(&pod, config, &sandbox("p")).await.unwrap();
    cri.start(&id).await.unwrap();
    for transport in BOTH {
        let mut command = cri.attach_streams(&id, ALL, transport).await.unwrap();
        say(&mut command, "a\n").await;
        read_until(&mut command, "a\n").await;
        command.stdin.take().unwrap().shutdown().await.unwrap();
        let ended = tokio::time::timeout(SOON, command.status.wait()).await;
        let status = ended.unwrap().unwrap();
        assert!(status.is_success(), "{transport:?}: {status:?}");
    }
    let status = cri.status(&id).await.unwrap();
    assert_eq!(status.state(), ContainerState::ContainerRunning);
}
