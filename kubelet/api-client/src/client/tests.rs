//! Clients against a small TLS server that reports the client's identity.

use std::{convert::Infallible, net::SocketAddr, path::PathBuf};

use bytes::Bytes;
use futures::StreamExt as _;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{Method, Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer},
        server::WebPkiClientVerifier,
    },
};

use super::*;

mod proxies;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

fn pem(label: &str, der: &[u8]) -> String {
    crate::certificate::pem::encode(label, der)
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Issuer::new(params, key),
            certificate,
        }
    }

    fn issue(&self, name: &str) -> (CertificateDer<'static>, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), key)
    }

    fn identity(&self, name: &str) -> (CertifiedKeyPem, CertificateDer<'static>) {
        let (certificate, key) = self.issue(name);
        let text = CertifiedKeyPem {
            certificate: pem("CERTIFICATE", &certificate),
            key: pem("PRIVATE KEY", key.serialized_der()),
        };
        (text, certificate)
    }
}

struct CertifiedKeyPem {
    certificate: String,
    key: String,
}

/// Answers `/whoami` with the client's certificate, user agent and token, and `/watch` with one
/// line of an endless body.
async fn serve(authority: &Authority, host: &str) -> SocketAddr {
    serve_as(authority, authority.issue(host)).await
}

/// Like [`serve`], with this certificate.
async fn serve_as(
    authority: &Authority,
    (certificate, key): (CertificateDer<'static>, KeyPair),
) -> SocketAddr {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.clone()).unwrap();
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
        .allow_unauthenticated()
        .build()
        .unwrap();
    let mut config = ServerConfig::builder()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![certificate],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let peer = stream.get_ref().1.peer_certificates();
                let peer = peer.and_then(|chain| chain.first()).cloned();
                let service = service_fn(move |request| answer(request, peer.clone()));
                let _ = http2::Builder::new(TokioExecutor::new())
                    .max_concurrent_streams(100)
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    address
}

async fn answer(
    request: Request<Incoming>,
    peer: Option<CertificateDer<'static>>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    assert_eq!(request.method(), Method::GET);
    if request.uri().path() == "/watch" {
        let first = futures::stream::iter([Ok(hyper::body::Frame::data(Bytes::from("a\n")))]);
        let body = http_body_util::StreamBody::new(first.chain(futures::stream::pending()));
        return Ok(Response::new(BodyExt::boxed(body)));
    }
    let header = |name| {
        let value = request.headers().get(name);
        value.map_or("", |value| value.to_str().unwrap()).to_owned()
    };
    let peer = peer.map(|peer| sha2_of(&peer)).unwrap_or_default();
    let text = [peer, header("user-agent"), header("authorization")].join("\n");
    Ok(Response::new(BodyExt::boxed(Full::from(text))))
}

fn sha2_of(certificate: &CertificateDer<'_>) -> String {
    use sha2::{Digest as _, Sha256};
    format!("{:x}", Sha256::digest(certificate))
}

fn kubeconfig(authority: &Authority, url: &str, cluster: &str, user: &str) -> String {
    let ca = BASE64.encode(pem("CERTIFICATE", &authority.certificate));
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
         clusters: [{{name: c, cluster: {{server: '{url}', certificate-authority-data: {ca}{cluster}}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\n"
    )
}

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};

fn access(dir: &tempfile::TempDir, text: &str) -> Result<ClusterAccess, KubeconfigError> {
    let path: PathBuf = dir.path().join("kubelet.conf");
    std::fs::write(&path, text).unwrap();
    ClusterAccess::read(&path)
}

async fn who_am_i(client: &Client) -> Vec<String> {
    let request = Request::get("/whoami").body(Vec::new()).unwrap();
    let text = client.request_text(request).await.unwrap();
    text.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn a_new_certificate_is_shown_at_once_and_old_connections_are_cut() {
    let authority = Authority::new();
    let address = serve(&authority, "kubernetes.test").await;
    let dir = tempfile::tempdir().unwrap();
    let (first, first_der) = authority.identity("first");
    std::fs::write(dir.path().join("node.pem"), first.certificate + &first.key).unwrap();
    let text = kubeconfig(
        &authority,
        &format!("https://{address}"),
        ", tls-server-name: kubernetes.test",
        "client-certificate: node.pem, client-key: node.pem",
    );
    let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
    let client = server.client(None);
    let asked = who_am_i(&client).await;
    assert_eq!(asked[0], sha2_of(&first_der));
    assert!(asked[1].starts_with("kubelet/v1.36"), "{asked:?}");

    let watch = Request::get("/watch").body(Vec::new()).unwrap();
    let watch = client.request_stream(watch).await.unwrap();
    let (second, second_der) = authority.identity("second");
    let key = certified_key(second.certificate.as_bytes(), second.key.as_bytes()).unwrap();
    server.identity().replace(Arc::new(key));
    assert_eq!(who_am_i(&client).await[0], sha2_of(&second_der));
    let mut rest = Vec::new();
    let mut watch = std::pin::pin!(watch);
    let end = time::timeout(
        Duration::from_secs(30),
        futures::AsyncReadExt::read_to_end(&mut watch, &mut rest),
    );
    end.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn many_watches_leave_room_for_other_requests() {
    let authority = Authority::new();
    let address = serve(&authority, "127.0.0.1").await;
    let dir = tempfile::tempdir().unwrap();
    let url = format!("https://{address}");
    let text = kubeconfig(&authority, &url, "", "token: secret");
    let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
    let client = server.client(None);
    assert_eq!(who_am_i(&client).await[2], "Bearer secret");
    let mut watches = Vec::new();
    for _ in 0..130 {
        let watch = Request::get("/watch").body(Vec::new()).unwrap();
        watches.push(client.request_stream(watch).await.unwrap());
    }
    let asked = time::timeout(Duration::from_secs(30), who_am_i(&client)).await;
    assert_eq!(asked.unwrap()[2], "Bearer secret");
}

#[tokio::test]
async fn requests_wait_for_the_first_certificate() {
    let authority = Authority::new();
    let address = serve(&authority, "127.0.0.1").await;
    let dir = tempfile::tempdir().unwrap();
    let text = kubeconfig(&authority, &format!("https://{address}"), "", "");
    let access = access(&dir, &text).unwrap();
    let identity = Arc::new(ClientIdentity::awaited());
    let server = ApiServer::with_identity(&access, Arc::clone(&identity)).unwrap();
    let client = server.client(None);
    let mut asking =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(
            async move { who_am_i(&client).await },
        ));
    let early = time::timeout(Duration::from_millis(200), &mut asking).await;
    assert!(early.is_err());
    let (pair, certificate) = authority.identity("node");
    let key = certified_key(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
    identity.replace(Arc::new(key));
    assert_eq!(asking.await.unwrap()[0], sha2_of(&certificate));
}

#[tokio::test]
async fn what_a_kubeconfig_lacks_is_named() {
    let authority = Authority::new();
    let dir = tempfile::tempdir().unwrap();
    let fault = |cluster: &str, user: &str| {
        let text = kubeconfig(&authority, "https://127.0.0.1:1", cluster, user);
        match access(&dir, &text) {
            Ok(access) => ApiServer::new(&access).unwrap_err().to_string(),
            Err(error) => error.to_string(),
        }
    };
    for (cluster, user, part) in [
        (
            ", proxy-url: 'https://u:secret@p:1'",
            "",
            "proxy-url: proxies with the scheme https are not supported; use http or socks5",
        ),
        ("", "client-certificate: a.pem", "client-key: is required"),
        (
            "",
            "client-certificate-data: '*', client-key: a",
            "client-certificate-data: ",
        ),
        (
            "",
            "client-certificate: a.pem, client-key: a.pem",
            "a.pem: No such file",
        ),
        (", tls-server-name: 'a b'", "", "tls-server-name: \"a b\": "),
        ("", "exec: {}", "exec.apiVersion: "),
    ] {
        let text = fault(cluster, user);
        assert!(text.contains(part), "{part} in {text}");
    }
    let missing = ClusterAccess::read(&dir.path().join("none")).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
    let ca = BASE64.encode(pem("CERTIFICATE", &authority.certificate));
    let text = kubeconfig(&authority, "https://127.0.0.1:1", "", "").replace(&ca, "Kg==");
    let error = ApiServer::new(&access(&dir, &text).unwrap()).unwrap_err();
    let part = "certificate-authority: there is no certificate in PEM";
    assert!(error.to_string().contains(part), "{error}");
}

#[tokio::test]
async fn only_a_server_of_the_authority_is_trusted_unless_any_is() {
    let address = serve(&Authority::new(), "127.0.0.1").await;
    let dir = tempfile::tempdir().unwrap();
    let ask = async |cluster: &str| {
        let url = format!("https://{address}");
        let text = kubeconfig(&Authority::new(), &url, cluster, "token: t");
        let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
        let request = Request::get("/whoami").body(Vec::new()).unwrap();
        server.client(None).request_text(request).await
    };
    ask("").await.unwrap_err();
    let text = ask(", insecure-skip-tls-verify: true").await.unwrap();
    assert!(text.contains("Bearer t"), "{text}");
}

#[tokio::test]
async fn a_server_whose_certificate_is_the_authority_is_trusted() {
    // As `openssl req -x509` makes it.
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let authority = Authority {
        issuer: Issuer::new(params, KeyPair::generate().unwrap()),
        certificate: certificate.clone(),
    };
    let address = serve_as(&authority, (certificate, key)).await;
    let dir = tempfile::tempdir().unwrap();
    let ask = async |authority: &Authority| {
        let url = format!("https://{address}");
        let text = kubeconfig(authority, &url, "", "token: t");
        let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
        let request = Request::get("/whoami").body(Vec::new()).unwrap();
        server.client(None).request_text(request).await
    };
    ask(&Authority::new()).await.unwrap_err();
    let text = ask(&authority).await.unwrap();
    assert!(text.contains("Bearer t"), "{text}");
}

/// Forwards each connection to the server that is current when it is opened.
async fn forward(current: watch::Receiver<SocketAddr>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let server = *current.borrow();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn new_authorities_in_the_file_are_trusted_on_new_connections() {
    let (old, new) = (Authority::new(), Authority::new());
    let (current, receiver) = watch::channel(serve(&old, "127.0.0.1").await);
    let url = format!("https://{}", forward(receiver).await);
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    let trust = |authority: &Authority| {
        std::fs::write(&ca, pem("CERTIFICATE", &authority.certificate)).unwrap();
    };
    trust(&old);
    let inline = BASE64.encode(pem("CERTIFICATE", &old.certificate));
    let text = kubeconfig(&old, &url, "", "token: t").replace(
        &format!("certificate-authority-data: {inline}"),
        "certificate-authority: ca.pem",
    );
    let server = ApiServer::new(&access(&dir, &text).unwrap()).unwrap();
    let ask = async |authority: &Authority| {
        // A new certificate of the client closes its connections.
        let (pair, _) = authority.identity("node");
        let key = certified_key(pair.certificate.as_bytes(), pair.key.as_bytes()).unwrap();
        server.identity().replace(Arc::new(key));
        let request = Request::get("/whoami").body(Vec::new()).unwrap();
        server.client(None).request_text(request).await
    };
    ask(&old).await.unwrap();

    current.send_replace(serve(&new, "127.0.0.1").await);
    ask(&new).await.unwrap_err();
    trust(&new);
    ask(&new).await.unwrap();
    // A file that is empty or gone for a moment changes nothing.
    std::fs::write(&ca, "").unwrap();
    ask(&new).await.unwrap();
    std::fs::remove_file(&ca).unwrap();
    ask(&new).await.unwrap();
    trust(&old);
    ask(&new).await.unwrap_err();
}
