//! An engine on another machine: its PIDs belong to other processes here.

#[path = "../../../dockershim/tests/support/certificates.rs"]
mod certificates;

use std::{fs, io};

use certificates::Authority;
use cri_proto::runtime::v1 as cri;
use cri_streaming::client::Transport;
use e2e::{cri::Cri, node::Node};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite},
    net::{TcpListener, TcpStream, UnixStream},
};

/// The port of an engine with TLS, in the engine's network namespace.
const PORT: u16 = 2376;

/// Forwards a TCP port to the connections that `connect` opens.
async fn by_tcp<S, C>(connect: impl Fn() -> C + Send + 'static) -> String
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
    C: Future<Output = io::Result<S>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let connected = connect();
            tokio::spawn(async move {
                let mut engine = connected.await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
            });
        }
    });
    endpoint
}

#[tokio::test]
async fn nothing_is_read_of_processes_that_bear_its_numbers() {
    let mut node = Node::with_shim().await.unwrap();
    node.stop_shim().await.unwrap();
    let socket = node.path("engine/docker.sock");
    let endpoint = by_tcp(move || UnixStream::connect(socket.clone())).await;
    node.start_shim_apart(&endpoint, &[]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, container) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let request = cri::ContainerStatsRequest {
        container_id: container.clone(),
    };
    let stats = cri.runtime.container_stats(request).await.unwrap();
    let stats = stats.into_inner().stats.unwrap();
    assert_eq!((stats.cpu, stats.memory), (None, None));
    let request = cri::ImageFsInfoRequest::default();
    let info = cri.images.image_fs_info(request).await.unwrap();
    let images = &info.into_inner().image_filesystems[0];
    assert!(images.used_bytes.unwrap().value > 0);
    // The directory of this name on this machine is another one.
    assert_eq!(images.inodes_used, None);
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
    assert!(refused.contains("not visible on this machine"), "{refused}");
    // Everything else is done by the engine.
    let echoed = cri.exec(&container, &["echo", "hello"], 10).await.unwrap();
    assert_eq!(echoed.stdout, b"hello\n");
    cri.remove_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn an_engine_that_serves_tls_does_its_work() {
    let mut node = Node::with_shim().await.unwrap();
    node.stop_shim().await.unwrap();
    let authority = Authority::new("engines");
    let directory = |name: &str, identity| {
        let directory = node.path(name);
        fs::create_dir(&directory).unwrap();
        certificates::write(&directory, &authority, &identity);
        directory.display().to_string()
    };
    let of_shim = directory("of-shim", authority.identity("shim"));
    let of_engine = directory("of-engine", authority.identity("127.0.0.1"));
    let host = format!("tcp://127.0.0.1:{PORT}");
    let flags = [
        "--tlsverify",
        &format!("--tlscacert={of_engine}/ca.pem"),
        &format!("--tlscert={of_engine}/cert.pem"),
        &format!("--tlskey={of_engine}/key.pem"),
        "--host",
        &host,
    ];
    node.engine_mut().stop().unwrap();
    node.engine_mut().start_again_with(&flags).await.unwrap();
    // Sockets of these threads are in the engine's network namespace.
    let threads = node.namespace().runtime().unwrap();
    let handle = threads.handle().clone();
    let endpoint = by_tcp(move || {
        let connected = handle.spawn(TcpStream::connect(("127.0.0.1", PORT)));
        async { connected.await.map_err(io::Error::other)? }
    })
    .await;
    let flag = format!("--docker-cert-path={of_shim}");
    let started = node.start_shim_apart(&endpoint, &[&flag]).await;
    started.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, container) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let echoed = cri.exec(&container, &["echo", "hello"], 10).await.unwrap();
    assert_eq!(echoed.stdout, b"hello\n");
    cri.remove_pod(&pod).await.unwrap();
    threads.shutdown_background();
}
