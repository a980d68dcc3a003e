//! Exec, attach and port-forward: carried to where the runtime says.

use std::time::Duration;

use e2e::fake_runtime::{Fault, Times, Verb};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

use crate::{client::read_head, node::Node};

const SOON: Duration = Duration::from_secs(20);

/// A streaming server that takes each request to any protocol, and echoes what comes.
/// What it was asked for is in the `X-Asked` header of its answer.
async fn streaming_server(node: &Node) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    node.runtime.set_streaming_url(&url);
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let head = read_head(&mut socket).await;
                let first = head.lines().next().unwrap().to_owned();
                let upgrade = head
                    .lines()
                    .find_map(|line| line.strip_prefix("upgrade: "))
                    .unwrap_or("none");
                let answer = format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\nX-Asked: {first}\r\n\r\n"
                );
                socket.write_all(answer.as_bytes()).await.unwrap();
                let (mut reader, mut writer) = socket.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    url
}

#[tokio::test]
async fn streams_are_carried_byte_for_byte() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let container = node.runtime.running("app")[0].id.clone();
    let sandbox = node.sandbox.clone();
    let admin = node.admin();
    for (path, asked) in [
        (
            "/exec/default/web/app?command=sh&output=1",
            format!("/exec/{container}"),
        ),
        (
            "/exec/default/web/uid-1/app?command=sh&input=1",
            format!("/exec/{container}"),
        ),
        (
            "/attach/default/web/app?output=1&tty=1",
            format!("/attach/{container}"),
        ),
        (
            "/attach/default/web/uid-1/app?error=1",
            format!("/attach/{container}"),
        ),
        (
            "/portForward/default/web?port=80",
            format!("/portforward/{sandbox}"),
        ),
        (
            "/portForward/default/web/uid-1?port=80",
            format!("/portforward/{sandbox}"),
        ),
        (
            "/cri/exec/some-token?x=y",
            "/exec/some-token?x=y".to_owned(),
        ),
    ] {
        for (method, protocol) in [("POST", "SPDY/3.1"), ("GET", "websocket")] {
            let upgrade = format!("Upgrade: {protocol}");
            let headers = ["Connection: Upgrade", &upgrade];
            let exchange = async {
                let mut stream = admin.send(method, path, &headers, "").await.unwrap();
                let head = read_head(&mut stream).await.to_lowercase();
                assert!(head.starts_with("http/1.1 101"), "{path}: {head}");
                let wanted = format!("x-asked: {method} {asked} http/1.1").to_lowercase();
                assert!(head.contains(&wanted), "{path}: {head}");
                assert!(head.contains(&upgrade.to_lowercase()), "{path}: {head}");
                let sent: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
                let (mut reader, mut writer) = tokio::io::split(stream);
                let writing = async {
                    writer.write_all(&sent).await.unwrap();
                    writer.flush().await.unwrap();
                };
                let mut back = vec![0; sent.len()];
                let (_, read) = tokio::join!(writing, reader.read_exact(&mut back));
                read.unwrap();
                assert!(back == sent, "{path}");
            };
            timeout(SOON, exchange).await.unwrap();
        }
    }
}

#[tokio::test]
async fn streams_end_with_the_kubelet() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let headers = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
    let path = "/exec/default/web/app?command=sh&output=1";
    let mut stream = node.admin().send("POST", path, &headers, "").await.unwrap();
    read_head(&mut stream).await;
    node.cancel.cancel();
    timeout(SOON, node.task).await.unwrap().unwrap();
    let mut rest = Vec::new();
    // However it ends, nothing comes any more.
    let _ = timeout(SOON, stream.read_to_end(&mut rest)).await.unwrap();
    assert!(rest.is_empty());
}

#[tokio::test]
async fn what_cannot_be_streamed_is_refused_in_upstreams_words() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    for (method, path, status, body) in [
        (
            "POST",
            "/exec/default/web/app",
            400,
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        (
            "POST",
            "/exec/default/gone/app?output=1",
            404,
            "pod does not exist",
        ),
        (
            "POST",
            "/exec/default/web/none?output=1",
            500,
            "container not found (\"none\")",
        ),
        (
            "POST",
            "/exec/default/web/another/app?output=1",
            500,
            "container not found (\"app\")",
        ),
        (
            "POST",
            "/attach/default/gone/app?output=1",
            404,
            "pod does not exist",
        ),
        (
            "POST",
            "/portForward/default/gone",
            404,
            "pod does not exist",
        ),
        (
            "POST",
            "/portForward/default/web/another",
            404,
            "pod not found",
        ),
    ] {
        let answer = admin.request(method, path, "").await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (status, body),
            "{path}"
        );
    }

    let answer = admin.get("/cri/exec/token").await;
    assert_eq!(answer.status, 502, "no streaming server: {answer:?}");

    streaming_server(&node).await;
    let answer = admin.get("/exec/default/web/app?output=1").await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.body, "Upgrade request required\n");

    let full = Fault::Error(tonic::Status::resource_exhausted(
        "maximum number of in-flight requests exceeded",
    ));
    node.runtime.fault(Verb::Exec, full, Times::Always);
    let answer = admin
        .request("POST", "/exec/default/web/app?output=1", "")
        .await;
    assert_eq!(answer.status, 429);
    assert!(answer.head.contains("retry-after: 60"), "{answer:?}");
}

#[tokio::test]
async fn websocket_port_forwards_say_their_ports() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let admin = node.admin();
    let headers = ["Connection: Upgrade", "Upgrade: websocket"];
    let head = async |path: &str, protocol: &str| {
        let protocol = format!("Sec-WebSocket-Protocol: {protocol}");
        let headers = [headers[0], headers[1], &protocol];
        let mut stream = admin.send("GET", path, &headers, "").await.unwrap();
        read_head(&mut stream).await
    };
    let path = "/portForward/default/web";
    assert!(
        head(path, "v4.channel.k8s.io")
            .await
            .starts_with("HTTP/1.1 400")
    );
    let tunnel = "SPDY/3.1+portforward.k8s.io";
    assert!(head(path, tunnel).await.starts_with("HTTP/1.1 101"));
}
