//! An engine reached by TCP, with and without TLS.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{fs, path::Path, sync::Arc};

use bollard::query_parameters::EventsOptions;
use cri_streaming::rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use dockershim::engine::{Endpoint, Engine};
use futures::StreamExt as _;
use support::{
    FakeEngine,
    certificates::{self, Authority, Identity},
    eventually,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, UnixStream},
};
use tokio_rustls::TlsAcceptor;

/// Clock ticks per second, as the kernel reports them (USER_HZ).
const TICKS: u32 = 100;
const HOST: &str = "127.0.0.1";

/// Forwards a TCP port to the engine's socket, with TLS if `tls` is given.
async fn by_tcp(engine: &FakeEngine, tls: Option<ServerConfig>) -> u16 {
    let listener = TcpListener::bind((HOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = tls.map(|tls| TlsAcceptor::from(Arc::new(tls)));
    let socket = engine.socket.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (socket, tls) = (socket.clone(), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => pass_on(client, &socket).await,
                    Some(tls) => {
                        if let Ok(client) = tls.accept(client).await {
                            pass_on(client, &socket).await;
                        }
                    }
                }
            });
        }
    });
    port
}

async fn pass_on(mut client: impl AsyncRead + AsyncWrite + Unpin, socket: &Path) {
    let mut engine = UnixStream::connect(socket).await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut client, &mut engine).await;
}

/// The TLS configuration of a server with this identity that accepts only clients of `authority`.
fn serving(identity: &Identity, authority: &Authority) -> ServerConfig {
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&authority.pem())).unwrap();
    let clients = WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    ServerConfig::builder()
        .with_client_cert_verifier(clients.unwrap())
        .with_single_cert(vec![certificate(&identity.certificate)], key)
        .unwrap()
}

fn plain(port: u16) -> Endpoint {
    format!("tcp://{HOST}:{port}").parse().unwrap()
}

/// An engine behind TLS, and the directory with the client's certificates.
async fn over_tls(fake: &FakeEngine) -> (Endpoint, tempfile::TempDir) {
    let authority = Authority::new("cluster");
    let tls = serving(&authority.identity(HOST), &authority);
    let endpoint = plain(by_tcp(fake, Some(tls)).await);
    let dir = tempfile::tempdir().unwrap();
    certificates::write(dir.path(), &authority, &authority.identity("shim"));
    (endpoint.over_tls(dir.path()).unwrap(), dir)
}

async fn refusal(endpoint: Endpoint) -> String {
    let engine = Engine::new(endpoint);
    engine.connect().await.unwrap_err().to_string()
}

/// The ticks until the next keepalive probe of each established connection to `port`; `None` for a
/// connection without keepalive.
fn probed_in(port: u16) -> Vec<Option<u32>> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
    let port = format!(":{port:04X}");
    let connections = table.lines().filter_map(|line| {
        // Number, local address, remote address, state (01: established), queues, timer
        // (02: keepalive).
        let columns: Vec<_> = line.split_whitespace().collect();
        let [_, _, remote, "01", _, timer, ..] = columns[..] else {
            return None;
        };
        let (kind, ticks) = timer.split_once(':').unwrap();
        remote
            .ends_with(&port)
            .then(|| (kind == "02").then(|| u32::from_str_radix(ticks, 16).unwrap()))
    });
    connections.collect()
}

#[tokio::test]
async fn every_connection_is_probed_for_an_engine_that_is_gone() {
    let fake = FakeEngine::start();
    let (secure, _certificates) = over_tls(&fake).await;
    let plain = plain(by_tcp(&fake, None).await);
    for endpoint in [plain, secure] {
        let port = endpoint.to_string().rsplit_once(':').unwrap().1.parse();
        let port = port.unwrap();
        let engine = Engine::new(endpoint);
        engine.connect().await.unwrap();
        let mut events = Box::pin(engine.events(EventsOptions::default()).unwrap());
        let _command = engine.start_exec("cat", false).await.unwrap();
        let follow = async { events.next().await.unwrap().unwrap() };
        let both_are_probed = eventually("both connections are probed within 15 s", || {
            let probed = probed_in(port);
            let soon = |ticks: &Option<u32>| ticks.is_some_and(|ticks| ticks <= 15 * TICKS);
            probed.len() == 2 && probed.iter().all(soon)
        });
        tokio::select! {
            event = follow => panic!("an event of nothing: {event:?}"),
            () = both_are_probed => {}
        }
    }
}

#[tokio::test]
async fn events_calls_and_streams_go_over_tls_by_a_clients_certificate() {
    let fake = FakeEngine::start();
    let (endpoint, _certificates) = over_tls(&fake).await;
    let engine = Engine::new(endpoint);
    let connection = engine.connect().await.unwrap();
    assert!(!connection.is_local);
    engine.ping().await.unwrap();
    let mut events = Box::pin(engine.events(EventsOptions::default()).unwrap());
    // The engine sends only the events that follow the request.
    let id = tokio::select! {
        event = events.next() => panic!("an event of nothing: {event:?}"),
        () = eventually("the events are asked for", || fake.calls("GET events") == 1) => {
            fake.add_sandbox("web", true, true)
        }
    };
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.actor.unwrap().id, Some(id));
    // Each end is notified when the other has sent everything.
    let (mut output, mut input) = engine.start_exec("cat", false).await.unwrap();
    let text = "hello".repeat(100_000);
    input.write_all(text.as_bytes()).await.unwrap();
    input.shutdown().await.unwrap();
    let mut written = String::new();
    output.read_to_string(&mut written).await.unwrap();
    assert!(written == text, "{} bytes", written.len());
}

#[tokio::test]
async fn an_engine_that_cannot_be_verified_is_refused() {
    let fake = FakeEngine::start();
    let (authority, other) = (Authority::new("cluster"), Authority::new("another"));
    let dir = tempfile::tempdir().unwrap();
    certificates::write(dir.path(), &authority, &authority.identity("shim"));
    for (identity, reason) in [
        (other.identity(HOST), "not signed by a CA in"),
        (
            authority.identity("127.0.0.2"),
            "not valid for name \"127.0.0.1\"",
        ),
        (
            authority.identity("localhost"),
            "not valid for name \"127.0.0.1\"",
        ),
    ] {
        let port = by_tcp(&fake, Some(serving(&identity, &authority))).await;
        let refused = refusal(plain(port).over_tls(dir.path()).unwrap()).await;
        assert!(refused.contains("the engine's certificate"), "{refused}");
        assert!(refused.contains(reason), "{refused}");
    }
    // This engine does not use TLS.
    let endpoint = plain(by_tcp(&fake, None).await);
    let refused = refusal(endpoint.over_tls(dir.path()).unwrap()).await;
    assert!(refused.contains("TLS: "), "{refused}");
    assert_eq!(fake.calls("GET _ping"), 0);
}

#[tokio::test]
async fn a_name_is_verified_as_an_address_is() {
    let fake = FakeEngine::start();
    let authority = Authority::new("cluster");
    let tls = serving(&authority.identity("localhost"), &authority);
    let port = by_tcp(&fake, Some(tls)).await;
    let dir = tempfile::tempdir().unwrap();
    certificates::write(dir.path(), &authority, &authority.identity("shim"));
    let endpoint: Endpoint = format!("tcp://localhost:{port}").parse().unwrap();
    let engine = Engine::new(endpoint.over_tls(dir.path()).unwrap());
    engine.connect().await.unwrap();
}

#[tokio::test]
async fn an_engine_that_wants_a_certificate_and_gets_none_of_its_authority_says_so() {
    let fake = FakeEngine::start();
    let (authority, other) = (Authority::new("cluster"), Authority::new("another"));
    let tls = serving(&authority.identity(HOST), &authority);
    let port = by_tcp(&fake, Some(tls)).await;
    let refused = refusal(plain(port)).await;
    assert!(refused.contains("needs --docker-cert-path"), "{refused}");

    let dir = tempfile::tempdir().unwrap();
    certificates::write(dir.path(), &authority, &other.identity("shim"));
    let endpoint = plain(port).over_tls(dir.path()).unwrap();
    let engine = Engine::new(endpoint);
    let refused = engine.connect().await.unwrap_err().to_string();
    let file = dir.path().join("cert.pem").display().to_string();
    let said = format!("rejected the certificate in {file}");
    assert!(refused.contains(&said), "{refused}");

    // The directory is read again at each connection.
    certificates::write(dir.path(), &authority, &authority.identity("shim"));
    engine.connect().await.unwrap();
}
