//! The upgrade proxy in front of this crate's server, and of backends that do not upgrade.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{convert::Infallible, path::Path, sync::Arc, time::Duration};

use cri_streaming::{
    Proxy, ProxyTimeouts,
    client::{Client, ClientError, Forwarded, Transport},
    parse_url,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer},
    },
};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use support::{ALL, Served, path, pattern, refusal, request};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixListener},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const BOTH: [Transport; 2] = [Transport::Spdy, Transport::WebSocket];
const SOON: Duration = Duration::from_secs(20);
const UPGRADE: [&str; 2] = ["Connection: Upgrade", "Upgrade: anything"];

/// An HTTP server that forwards every request to one backend, as the kubelet does.
struct Front {
    address: String,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Front {
    async fn of(backend: &str) -> Self {
        Self::with(backend, |proxy| proxy).await
    }

    async fn with(backend: &str, change: impl FnOnce(Proxy) -> Proxy) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let proxy = Proxy::new(ProxyTimeouts::default(), tasks.clone(), stop.clone());
        let proxy = change(proxy);
        let backend = backend.to_owned();
        tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (proxy, backend) = (proxy.clone(), backend.clone());
                tokio::spawn(async move {
                    let service = service_fn(async |request: hyper::Request<_>| {
                        let path = request.uri().path_and_query().unwrap().to_string();
                        let to = parse_url(&format!("{backend}{path}")).await.unwrap();
                        Ok::<_, Infallible>(proxy.forward(request, &to).await)
                    });
                    let _ = http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service)
                        .with_upgrades()
                        .await;
                });
            }
        });
        Self {
            address,
            tasks,
            stop,
        }
    }

    /// Returns the URL of the same request through the proxy.
    fn url(&self, url: &str) -> String {
        format!("http://{}{}", self.address, path(url))
    }
}

/// Starts a backend that accepts one connection and reads a request; the test does the rest.
async fn backend() -> (String, tokio::task::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let accepted = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.contains("upgrade: anything\r\n"), "{head}");
        assert!(!head.contains("authorization"), "{head}");
        socket
    });
    (url, accepted)
}

/// Creates a self-signed certificate for 127.0.0.1, and its key.
fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(own.signing_key.serialize_der()).unwrap();
    (own.cert.der().clone(), key)
}

/// A client configuration that trusts one certificate.
fn trusting(certificate: CertificateDer<'static>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots);
    Arc::new(config.with_no_client_auth())
}

/// Starts a streaming server with TLS; returns it and its certificate.
async fn served_over_tls() -> (Served, CertificateDer<'static>) {
    let (own, key) = certificate();
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![own.clone()], key)
        .unwrap();
    let served = Served::with(|served| served.tls = Some(Arc::new(config))).await;
    (served, own)
}

/// Forwards the connections of a unix socket to a server.
fn listen_on(socket: &Path, server: &str) {
    let listener = UnixListener::bind(socket).unwrap();
    let address = server.trim_start_matches("http://").to_owned();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let mut far = TcpStream::connect(&address).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
        }
    });
}

#[tokio::test]
async fn commands_and_ports_go_through() {
    let served = Served::new().await;
    let front = Front::of(served.server.base_url()).await;
    all_goes_through(&served, front).await;
}

#[tokio::test]
async fn commands_and_ports_go_through_over_tls() {
    let (served, own) = served_over_tls().await;
    let front = Front::with(served.server.base_url(), |proxy| {
        proxy.with_tls(trusting(own))
    });
    all_goes_through(&served, front.await).await;
}

#[tokio::test]
async fn commands_and_ports_go_through_a_unix_socket() {
    let served = Served::new().await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("streams.sock");
    listen_on(&socket, served.server.base_url());
    let front = Front::of(&format!("unix://{}", socket.display())).await;
    all_goes_through(&served, front).await;
}

#[tokio::test]
async fn a_server_that_nobody_vouches_for_is_told_nothing() {
    let (served, _) = served_over_tls().await;
    let url = served.server.base_url();
    let (another, _) = certificate();
    let front = Front::with(url, |proxy| proxy.with_tls(trusting(another))).await;
    let (head, body) = refusal(&front.url("http://x/exec/token"), "POST", &UPGRADE).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(body.contains(url) && body.contains("certificate"), "{body}");
    assert!(!body.contains("token"), "{body}");

    let front = Front::of(url).await;
    let (head, body) = refusal(&front.url("http://x/any"), "POST", &UPGRADE).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(body.contains("needs a TLS configuration"), "{body}");
}

async fn all_goes_through(served: &Served, front: Front) {
    for transport in BOTH {
        let url = front.url(&served.exec("echo", ALL));
        let mut command = Client::default()
            .command(&url, transport, ALL)
            .await
            .unwrap();
        let data = pattern(3_000_000);
        let mut stdin = command.stdin.take().unwrap();
        let sent = data.clone();
        let sending = tokio::spawn(async move {
            stdin.write_all(&sent).await.unwrap();
            stdin.shutdown().await.unwrap();
            stdin
        });
        let mut back = vec![0; data.len()];
        command
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut back)
            .await
            .unwrap();
        assert!(back == data, "{transport:?}");
        assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(0));
        sending.await.unwrap();

        let url = front.url(&served.exec("exit 42", ALL));
        let command = Client::default()
            .command(&url, transport, ALL)
            .await
            .unwrap();
        assert_eq!(command.status.wait().await.unwrap().exit_code(), Some(42));

        let url = served.server.port_forward("s".into(), vec![]).unwrap();
        let forwarder = Client::default()
            .port_forward(&front.url(&url), transport)
            .await
            .unwrap();
        let Forwarded { mut reader, .. } = forwarder.connect(13).await.unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }
    served.settled().await;
    front.tasks.close();
    timeout(SOON, front.tasks.wait()).await.unwrap();
}

#[tokio::test]
async fn a_client_that_leaves_is_noticed_behind_the_proxy() {
    let served = Served::new().await;
    let front = Front::of(served.server.base_url()).await;
    for transport in BOTH {
        let url = front.url(&served.exec("hang", ALL));
        drop(
            Client::default()
                .command(&url, transport, ALL)
                .await
                .unwrap(),
        );
        served.settled().await;
    }
}

#[tokio::test]
async fn a_refusal_comes_with_its_status_and_text() {
    let served = Served::new().await;
    let front = Front::of(served.server.base_url()).await;
    let url = front.url("http://x/exec/AAAAAAAA");
    match Client::default().command(&url, Transport::Spdy, ALL).await {
        Err(ClientError::Refused { status, text }) => {
            assert_eq!(
                (status.as_u16(), text.as_str()),
                (404, "404 page not found")
            );
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    let (head, body) = refusal(&url, "GET", &["Connection: close"]).await;
    assert!(head.starts_with("HTTP/1.1 400"), "{head}");
    assert!(body.contains("Upgrade request required"), "{body}");
}

#[tokio::test]
async fn bytes_that_come_early_and_ends_by_halves_are_carried() {
    let (url, accepted) = backend().await;
    let front = Front::of(&url).await;
    let backend = tokio::spawn(async move {
        let mut socket = accepted.await.unwrap();
        // Data directly after the head.
        let answer =
            "HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: anything\r\nX-Own: 1\r\n\r\nearly";
        socket.write_all(answer.as_bytes()).await.unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "behind the request, and later");
        socket
            .write_all(b" and after the client's end")
            .await
            .unwrap();
    });
    let headers = [UPGRADE[0], UPGRADE[1], "Authorization: Bearer secret"];
    let target = front.url("http://x/any");
    let sending = async {
        let (head, mut socket) = request(&target, "POST", &headers).await;
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        assert!(head.to_lowercase().contains("x-own: 1"), "{head}");
        socket.write_all(b"behind the request").await.unwrap();
        socket.write_all(b", and later").await.unwrap();
        socket.shutdown().await.unwrap();
        let mut said = String::new();
        socket.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "early and after the client's end");
    };
    timeout(SOON, sending).await.unwrap();
    backend.await.unwrap();
}

#[tokio::test]
async fn a_backend_that_is_not_there_or_goes_is_named() {
    // A port on which no server listens.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let front = Front::of(&format!("http://{address}")).await;
    let (head, body) = refusal(&front.url("http://x/any"), "POST", &UPGRADE).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(body.contains(&address), "{body}");

    let (url, accepted) = backend().await;
    let front = Front::of(&url).await;
    let gone = tokio::spawn(async move { drop(accepted.await.unwrap()) });
    let (head, body) = refusal(&front.url("http://x/any"), "POST", &UPGRADE).await;
    assert!(head.starts_with("HTTP/1.1 502"), "{head}");
    assert!(body.contains(url.trim_start_matches("http://")), "{body}");
    gone.await.unwrap();
}

#[tokio::test]
async fn a_stopping_proxy_ends_what_it_carries() {
    let served = Served::new().await;
    let front = Front::of(served.server.base_url()).await;
    let url = front.url(&served.exec("hang", ALL));
    let command = Client::default()
        .command(&url, Transport::Spdy, ALL)
        .await
        .unwrap();
    front.stop.cancel();
    front.tasks.close();
    timeout(SOON, front.tasks.wait()).await.unwrap();
    command.status.wait().await.unwrap_err();
    served.settled().await;
}
