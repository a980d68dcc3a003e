//! An engine that another machine has: its processes have numbers that are others' here.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use cri_proto::runtime::v1 as cri;
use cri_streaming::client::Transport;
use e2e::{cri::Cri, node::Node};
use tokio::{
    io::AsyncReadExt as _,
    net::{TcpListener, UnixStream},
};

/// The engine's socket behind a TCP port.
async fn by_tcp(node: &Node) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    let socket = node.path("engine/docker.sock");
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let socket = socket.clone();
            tokio::spawn(async move {
                let mut engine = UnixStream::connect(socket).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
            });
        }
    });
    endpoint
}

#[tokio::test]
async fn nothing_is_read_of_processes_that_bear_its_numbers() {
    let mut node = Node::with_shim().await.unwrap();
    node.stop_shim().unwrap();
    let endpoint = by_tcp(&node).await;
    node.start_shim_apart(&endpoint).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, container) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let request = cri::ContainerStatsRequest {
        container_id: container.clone(),
    };
    let stats = cri.runtime.container_stats(request).await.unwrap();
    let stats = stats.into_inner().stats.unwrap();
    assert_eq!((stats.cpu, stats.memory), (None, None));
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: pod.clone(),
    };
    let stats = cri.runtime.pod_sandbox_stats(request).await.unwrap();
    let linux = stats.into_inner().stats.unwrap().linux.unwrap();
    assert_eq!((linux.cpu, linux.network), (None, None));
    let forwarder = cri.port_forward(&pod, Transport::Spdy).await.unwrap();
    let mut refused = String::new();
    let mut port = forwarder.connect(80).await.unwrap();
    port.error.read_to_string(&mut refused).await.unwrap();
    assert!(refused.contains("not those of this machine"), "{refused}");
    // The rest is the engine's own work.
    let echoed = cri.exec(&container, &["echo", "hello"], 10).await.unwrap();
    assert_eq!(echoed.stdout, b"hello\n");
    cri.remove_pod(&pod).await.unwrap();
}
