//! Attach.

use cri_proto::runtime::v1::ContainerState;
use e2e::{
    cri::{Cri, container, sandbox},
    node::Node,
};

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
            let wants = if tty { TTY } else { ALL };

            let mut first = cri.attach_streams(&id, wants, transport).await.unwrap();
            say(&mut first, "one\n").await;
            read_until(&mut first, "got one").await;
            drop(first);

            let mut second = cri.attach_streams(&id, wants, transport).await.unwrap();
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
