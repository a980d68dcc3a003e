//! Exec, attach and port-forward, proxied to the runtime's streaming server.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use fake_runtime::{Fault, Times, Verb};
use kubelet_http::roots::Roots;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, UnixListener},
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{ServerConfig, pki_types::PrivateKeyDer},
};

use crate::{
    client::{Caller, read_head},
    node::Node,
};

const SOON: Duration = Duration::from_secs(20);

/// A streaming server that accepts any upgrade protocol and echoes the stream. The `X-Asked` header
/// of its response contains the request line.
async fn echo(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let head = read_head(&mut stream).await;
    let first = head.lines().next().unwrap().to_owned();
    let upgrade = head
        .lines()
        .find_map(|line| line.strip_prefix("upgrade: "))
        .unwrap_or("none");
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {upgrade}\r\nX-Asked: {first}\r\n\r\n"
    );
    stream.write_all(answer.as_bytes()).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let mut piece = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = reader.read(&mut piece).await {
        writer.write_all(&piece[..length]).await.unwrap();
        writer.flush().await.unwrap();
    }
    let _ = writer.shutdown().await;
}

/// Starts a streaming server that runs [`echo`].
pub(crate) async fn streaming_server(node: &Node) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    node.runtime.set_streaming_url(&format!("http://{address}"));
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(socket));
        }
    });
}

/// The same over TLS, with a self-signed certificate that is a CA or not. Returns the certificate,
/// as PEM.
async fn streaming_server_over_tls(node: &Node, name: &str, is_ca: IsCa) -> String {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.is_ca = is_ca;
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    node.runtime
        .set_streaming_url(&format!("https://{address}"));
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(socket).await {
                    echo(stream).await;
                }
            });
        }
    });
    certificate.pem()
}

/// Proxies a request with both protocols, and expects the echo of what it sends.
async fn carried(admin: &Caller, path: &str, asked: &str) {
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

/// The head and body of the response that refuses an upgrade.
async fn refused(admin: &Caller, path: &str) -> (String, String) {
    let headers = ["Connection: Upgrade, close", "Upgrade: SPDY/3.1"];
    let mut stream = admin.send("POST", path, &headers, "").await.unwrap();
    let head = read_head(&mut stream).await;
    let mut body = Vec::new();
    // The server may close the connection without `close_notify`; the response is complete anyway.
    let _ = timeout(SOON, stream.read_to_end(&mut body)).await.unwrap();
    (head, String::from_utf8(body).unwrap())
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
        carried(&admin, path, &asked).await;
    }
}

/// A node that trusts the roots in a file, which does not exist yet.
async fn node_that_trusts_a_file() -> (Node, PathBuf, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("roots.pem");
    let roots = Roots::of_file(file.clone());
    let node = Node::with(|options| options.streaming_roots = roots).await;
    (node, file, directory)
}

const EXEC: &str = "/exec/default/web/app?command=sh&output=1";

#[tokio::test]
async fn a_runtime_that_streams_over_tls_is_reached_when_it_is_trusted() {
    for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let (node, file, _directory) = node_that_trusts_a_file().await;
        let admin = node.admin();
        let own = streaming_server_over_tls(&node, "127.0.0.1", is_ca).await;

        let (head, body) = refused(&admin, EXEC).await;
        assert!(head.starts_with("HTTP/1.1 502"), "{head}");
        assert!(body.contains("no trusted roots in"), "{body}");

        fs::write(&file, &node.authority.pem).unwrap();
        let (head, body) = refused(&admin, EXEC).await;
        assert!(head.starts_with("HTTP/1.1 502"), "{head}");
        assert!(body.contains("trusted by this machine"), "{body}");

        // Changed roots take effect without a restart.
        fs::write(&file, own).unwrap();
        let container = &node.runtime.running("app")[0].id;
        carried(&admin, EXEC, &format!("/exec/{container}")).await;
        carried(&admin, "/cri/attach/token?x=y", "/attach/token?x=y").await;
    }
}

#[tokio::test]
async fn a_trusted_certificate_is_good_for_its_own_host_alone() {
    let (node, file, _directory) = node_that_trusts_a_file().await;
    let own = streaming_server_over_tls(&node, "elsewhere", IsCa::NoCa).await;
    fs::write(&file, own).unwrap();
    let (head, body) = refused(&node.admin(), EXEC).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(body.contains("must be for that host"), "{body}");
}

#[tokio::test]
async fn a_runtime_that_streams_over_a_unix_socket_is_reached() {
    let node = Node::in_cluster().await;
    let admin = node.admin();
    let socket = node.dir.path().join("streams.sock");
    let url = format!("unix://{}", socket.display());
    node.runtime.set_streaming_url(&url);
    let (head, body) = refused(&admin, EXEC).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(body.contains("no unix socket of this machine"), "{body}");

    let listener = UnixListener::bind(&socket).unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            tokio::spawn(echo(socket));
        }
    });
    // No earlier request has revealed the streaming address.
    carried(&admin, "/cri/exec/token?x=y", "/exec/token?x=y").await;
    let container = &node.runtime.running("app")[0].id;
    carried(&admin, EXEC, &format!("/exec/{container}")).await;
    // From now on the runtime's URLs contain no address.
    node.runtime.set_streaming_url("");
    carried(&admin, EXEC, &format!("/exec/{container}")).await;
}

#[tokio::test]
async fn commands_may_be_longer_than_a_uri() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let admin = node.admin();
    let command = |length: usize| format!("{EXEC}&command={}", "x".repeat(length));
    let container = &node.runtime.running("app")[0].id;
    for length in [65_534, 65_535, 200_000, 1_000_000] {
        let length = length - command(0).len();
        carried(&admin, &command(length), &format!("/exec/{container}")).await;
        let streamed = node.runtime.streamed_command();
        assert_eq!(streamed[1].len(), length);
    }
    let (head, _) = refused(&admin, &command(1024 * 1024)).await;
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
    let (head, body) = refused(&admin, &format!("{EXEC}{}", "&a".repeat(16 * 1024))).await;
    assert!(head.starts_with("HTTP/1.1 414"), "{head}");
    assert!(body.contains("at most 16384 parameters"), "{body}");
    // Who may run the command is decided as for other commands.
    let stranger = Caller::new(admin.address.clone(), admin.trusts.clone());
    let (head, _) = refused(&stranger, &command(200_000)).await;
    assert!(head.starts_with("HTTP/1.1 401"), "{head}");
}

#[tokio::test]
async fn a_stream_is_in_flight_until_it_ends() {
    let node = Node::in_cluster().await;
    streaming_server(&node).await;
    let admin = node.admin();
    let labels = "{method=\"POST\",path=\"exec\",server_type=\"readwrite\",long_running=\"true\"}";
    let count = async |suffix: &str| {
        let page = admin.get("/metrics").await.body;
        let series = format!("kubelet_http_{suffix}{labels} ");
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix(&series));
        value.map(str::to_owned)
    };
    let headers = ["Connection: Upgrade", "Upgrade: SPDY/3.1"];
    let mut stream = admin.send("POST", EXEC, &headers, "").await.unwrap();
    read_head(&mut stream).await;
    assert_eq!(count("inflight_requests").await.as_deref(), Some("1"));
    let durations = "requests_duration_seconds_count";
    assert_eq!(count(durations).await.as_deref(), Some("0"));
    drop(stream);
    let ended = timeout(SOON, async {
        while count("inflight_requests").await.as_deref() != Some("0") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    ended.await.unwrap();
    assert_eq!(count(durations).await.as_deref(), Some("1"));
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
    // However the stream ends, it delivers no more data.
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
