use std::sync::Arc;

use k8s_openapi::{
    api::core::v1::{ContainerPort, HTTPHeader},
    apimachinery::pkg::util::intstr::IntOrString,
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    },
};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio_util::task::AbortOnDropHandle;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

/// A server that answers each connection with the next answer, the last one again
/// and again, and keeps what it was asked.
struct Peer {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl Peer {
    async fn new(answers: &[&str]) -> Self {
        Self::with_tls(answers, None).await
    }

    async fn with_tls(answers: &[&str], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let answers: Vec<String> = answers
            .iter()
            .map(|answer| answer.replace("PORT", &port.to_string()))
            .collect();
        let seen = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            for number in 0.. {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = &answers[number.min(answers.len() - 1)];
                match &tls {
                    None => answer_to(stream, answer, &seen).await,
                    Some(tls) => match tls.accept(stream).await {
                        Ok(stream) => answer_to(stream, answer, &seen).await,
                        Err(_) => continue,
                    },
                }
            }
        });
        Self {
            port,
            requests,
            _task: AbortOnDropHandle::new(task),
        }
    }

    fn action(&self, path: &str) -> HTTPGetAction {
        HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(self.port.into()),
            ..HTTPGetAction::default()
        }
    }

    async fn probe(&self, path: &str) -> Outcome {
        ask(&self.action(path)).await
    }
}

async fn answer_to<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    answer: &str,
    seen: &Mutex<Vec<String>>,
) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => request.push(byte),
            Err(_) => break,
        }
    }
    seen.lock().push(String::from_utf8(request).unwrap());
    if answer == "hang" {
        std::future::pending::<()>().await;
    }
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

async fn ask(action: &HTTPGetAction) -> Outcome {
    let request = HttpGet::new(action, None, "127.0.0.1", "probe").unwrap();
    probe(&request, TIMEOUT).await.unwrap()
}

fn header(name: &str, value: &str) -> HTTPHeader {
    HTTPHeader {
        name: name.to_owned(),
        value: value.to_owned(),
    }
}

fn failure(outcome: Outcome) -> String {
    match outcome {
        Outcome::Failure(message) => message,
        other => panic!("{other:?}"),
    }
}

fn acceptor() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["nobody.invalid".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn a_probe_says_who_it_is() {
    let peer = Peer::new(&["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]).await;
    assert_eq!(peer.probe("/healthz?full").await, Outcome::Success);
    let request = peer.requests.lock()[0].clone();
    assert!(request.starts_with("GET /healthz?full HTTP/1.1\r\n"));
    let mut headers: Vec<&str> = request.lines().skip(1).filter(|l| !l.is_empty()).collect();
    headers.sort_unstable();
    assert_eq!(
        headers,
        [
            "accept: */*",
            "connection: close",
            &format!("host: 127.0.0.1:{}", peer.port),
            "user-agent: kube-probe/1.36",
        ]
    );
}

#[tokio::test]
async fn the_spec_says_other_headers_and_a_port_by_name() {
    let peer = Peer::new(&["HTTP/1.1 204 No Content\r\n\r\n"]).await;
    let action = HTTPGetAction {
        host: Some("localhost".to_owned()),
        port: IntOrString::String("web".to_owned()),
        http_headers: Some(vec![
            header("Host", "example.com"),
            header("X-Two", "1"),
            header("X-Two", "2"),
            header("User-Agent", "me"),
            header("Accept", ""),
        ]),
        ..HTTPGetAction::default()
    };
    let container = Container {
        ports: Some(vec![ContainerPort {
            name: Some("web".to_owned()),
            container_port: peer.port.into(),
            ..ContainerPort::default()
        }]),
        ..Container::default()
    };
    let request = HttpGet::new(&action, Some(&container), "192.0.2.1", "probe").unwrap();
    assert_eq!(probe(&request, TIMEOUT).await.unwrap(), Outcome::Success);
    let request = peer.requests.lock()[0].clone();
    let mut headers: Vec<&str> = request.lines().skip(1).filter(|l| !l.is_empty()).collect();
    headers.sort_unstable();
    assert_eq!(
        headers,
        [
            "connection: close",
            "host: example.com",
            "user-agent: me",
            "x-two: 1",
            "x-two: 2",
        ]
    );
    assert!(HttpGet::new(&action, None, "192.0.2.1", "probe").is_err());
}

#[tokio::test]
async fn statuses_are_judged() {
    for (status, well) in [(200, true), (299, true), (400, false), (503, false)] {
        let answer = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n");
        let peer = Peer::new(&[&answer]).await;
        let outcome = peer.probe("/").await;
        if well {
            assert_eq!(outcome, Outcome::Success, "{status}");
        } else {
            let message = format!("HTTP probe failed with statuscode: {status}");
            assert_eq!(failure(outcome), message);
        }
    }
}

#[tokio::test]
async fn redirects_on_the_host_are_followed() {
    let peer = Peer::new(&[
        "HTTP/1.1 302 Found\r\nlocation: /next?x\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 301 Moved\r\nlocation: http://127.0.0.1:PORT/last\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
    ])
    .await;
    let message = failure(peer.probe("/").await);
    assert_eq!(message, "HTTP probe failed with statuscode: 500");
    let requests = peer.requests.lock().clone();
    let lines: Vec<&str> = requests.iter().map(|r| r.lines().next().unwrap()).collect();
    assert_eq!(
        lines,
        [
            "GET / HTTP/1.1",
            "GET /next?x HTTP/1.1",
            "GET /last HTTP/1.1"
        ]
    );
    let referer = format!("referer: http://127.0.0.1:{}/\r\n", peer.port);
    assert!(requests[1].contains(&referer), "{}", requests[1]);
}

#[tokio::test]
async fn redirects_end_somewhere() {
    let peer =
        Peer::new(&["HTTP/1.1 307 x\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n"]).await;
    let message = failure(peer.probe("/").await);
    assert!(message.ends_with("stopped after 10 redirects"), "{message}");
    assert_eq!(peer.requests.lock().len(), 10);
}

#[tokio::test]
async fn a_redirect_elsewhere_is_well_with_a_warning() {
    for answer in [
        "HTTP/1.1 302 x\r\nlocation: http://example.com/\r\ncontent-length: 5\r\n\r\nthere",
        "HTTP/1.1 302 x\r\ncontent-length: 5\r\n\r\nthere",
    ] {
        let peer = Peer::new(&[answer]).await;
        assert_eq!(
            peer.probe("/").await,
            Outcome::Warning("Probe terminated redirects, Response body: there".to_owned())
        );
    }
}

#[tokio::test]
async fn long_answers_are_cut() {
    let body = "x".repeat(3 * MAX_BODY);
    let answer = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}");
    let peer = Peer::new(&[&answer]).await;
    let request = HttpGet::new(&peer.action("/"), None, "127.0.0.1", "probe").unwrap();
    let answer = http_get(&request, TIMEOUT).await.unwrap();
    assert_eq!(answer.body.len(), MAX_BODY);
}

#[tokio::test]
async fn silence_and_absence_are_failures() {
    let peer = Peer::new(&["hang"]).await;
    let action = peer.action("/");
    let request = HttpGet::new(&action, None, "127.0.0.1", "probe").unwrap();
    let outcome = probe(&request, Duration::from_millis(50)).await.unwrap();
    let message = failure(outcome);
    let late = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    assert!(message.ends_with(late), "{message}");
    drop(peer);
    tokio::task::yield_now().await;
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = gone.local_addr().unwrap().port();
    drop(gone);
    let action = HTTPGetAction {
        port: IntOrString::Int(port.into()),
        ..HTTPGetAction::default()
    };
    let message = failure(ask(&action).await);
    let start = format!("Get \"http://127.0.0.1:{port}/\": dial tcp 127.0.0.1:{port}: ");
    assert!(message.starts_with(&start), "{message}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_says_nothing() {
    let peer = Peer::new(&["HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf"]).await;
    let request = HttpGet::new(&peer.action("/"), None, "127.0.0.1", "probe").unwrap();
    let error = probe(&request, TIMEOUT).await.unwrap_err();
    assert!(matches!(error, HttpError::Body { .. }), "{error}");
}

#[tokio::test]
async fn any_certificate_will_do() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    let peer = Peer::with_tls(&[answer], Some(acceptor())).await;
    let action = HTTPGetAction {
        scheme: Some("HTTPS".to_owned()),
        ..peer.action("/safe")
    };
    assert_eq!(ask(&action).await, Outcome::Success);
    assert!(peer.requests.lock()[0].starts_with("GET /safe HTTP/1.1"));
}

#[tokio::test]
async fn http_2_is_spoken_where_the_server_prefers_it() {
    let made = rcgen::generate_simple_self_signed(["nobody.invalid".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tls = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let stream = TokioIo::new(tls.accept(stream).await.unwrap());
        let (seen, asked) = tokio::sync::oneshot::channel();
        let seen = Mutex::new(Some(seen));
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let uri = request.uri().to_string();
            seen.lock().take().map(|seen| seen.send(uri));
            async { Ok::<_, std::convert::Infallible>(Response::new(Empty::<Bytes>::new())) }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(stream, service).await;
        asked.await.unwrap()
    });
    let action = HTTPGetAction {
        scheme: Some("HTTPS".to_owned()),
        path: Some("/x".to_owned()),
        port: IntOrString::Int(port.into()),
        ..HTTPGetAction::default()
    };
    assert_eq!(ask(&action).await, Outcome::Success);
    let asked = server.await.unwrap();
    assert_eq!(asked, format!("https://127.0.0.1:{port}/x"));
}

#[tokio::test]
async fn a_server_without_tls_is_told_from_a_broken_one() {
    let plain = Peer::new(&["HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"]).await;
    let https = |peer: &Peer| HTTPGetAction {
        scheme: Some("HTTPS".to_owned()),
        ..peer.action("/")
    };
    // The greeting of TLS has no end that this server waits for.
    let greeted = Peer::greeting("HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let request = HttpGet::new(&https(&greeted), None, "127.0.0.1", "probe").unwrap();
    let error = http_get(&request, TIMEOUT).await.unwrap_err();
    assert!(matches!(error, HttpError::PlainHttp(_)), "{error}");
    let other = Peer::greeting("SSH-2.0-x\r\n").await;
    let message = failure(ask(&https(&other)).await);
    assert!(message.contains("tls: "), "{message}");
    let unsafe_request = HttpGet::new(&https(&plain), None, "127.0.0.1", "probe")
        .unwrap()
        .without_tls();
    let answer = http_get(&unsafe_request, TIMEOUT).await.unwrap();
    assert_eq!(answer.status, 400);
}

impl Peer {
    /// A server that sends the same response to every request.
    async fn greeting(words: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let words = words.to_owned();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(words.as_bytes()).await;
            }
        });
        Self {
            port,
            requests: Arc::default(),
            _task: AbortOnDropHandle::new(task),
        }
    }
}
