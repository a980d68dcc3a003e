//! A node joins a cluster whose API server signs every request.

use std::{convert::Infallible, path::Path, time::SystemTime};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

/// An API server over plain HTTP that serves only CertificateSigningRequests.
struct Cluster {
    issuer: Issuer<'static, KeyPair>,
    requests: Mutex<Vec<Value>>,
    /// Lifetime of the next certificates.
    lifetime: Mutex<Duration>,
    denies: bool,
}

struct RawKey(Vec<u8>);

impl PublicKeyData for RawKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Cluster {
    async fn start(denies: bool) -> (Arc<Self>, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let cluster = Arc::new(Self {
            issuer: Issuer::new(params, key),
            requests: Mutex::default(),
            lifetime: Mutex::new(Duration::from_secs(3600)),
            denies,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let served = Arc::clone(&cluster);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let cluster = Arc::clone(&served);
                let service = service_fn(move |request| {
                    let cluster = Arc::clone(&cluster);
                    async move { cluster.answer(request).await }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        (cluster, url)
    }

    async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let method = request.method().clone();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let name = path.rsplit('/').next().unwrap();
        let answer = match (method, name) {
            (Method::POST, "certificatesigningrequests") => {
                let request: Value = serde_json::from_slice(&body).unwrap();
                let signed = self.sign(request);
                self.requests.lock().push(signed.clone());
                signed
            }
            (Method::GET, "certificatesigningrequests") => {
                let requests = self.requests.lock();
                let (_, name) = query.split_once("metadata.name%3D").unwrap();
                let name = name.split('&').next().unwrap();
                let named = |request: &&Value| request["metadata"]["name"] == name;
                let items: Vec<&Value> = requests.iter().filter(named).collect();
                json!({"metadata": {"resourceVersion": "1"}, "items": items})
            }
            other => panic!("{other:?}"),
        };
        Ok(Response::new(Full::from(answer.to_string())))
    }

    fn sign(&self, mut request: Value) -> Value {
        if request["metadata"]["name"].is_null() {
            request["metadata"]["name"] = json!(format!("csr-{}", self.requests.lock().len()));
        }
        request["metadata"]["uid"] = json!("u");
        if self.denies {
            request["status"] =
                json!({"conditions": [{"type": "Denied", "status": "True", "reason": "Policy"}]});
            return request;
        }
        let text = BASE64
            .decode(request["spec"]["request"].as_str().unwrap())
            .unwrap();
        let certificate = self.certificate(&text);
        request["status"] = json!({
            "conditions": [{"type": "Approved", "status": "True"}],
            "certificate": BASE64.encode(certificate),
        });
        request
    }

    fn certificate(&self, request: &[u8]) -> String {
        use tokio_rustls::rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
        use x509_parser::prelude::{FromDer as _, X509CertificationRequest};
        let der = CertificateSigningRequestDer::from_pem_slice(request).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&der).unwrap();
        let info = &request.certification_request_info;
        let organization = info.subject.iter_organization().next().unwrap();
        assert_eq!(organization.as_str().unwrap(), "system:nodes");
        let name = info.subject.iter_common_name().next().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        let names = &mut params.distinguished_name;
        names.push(DnType::OrganizationName, "system:nodes");
        names.push(DnType::CommonName, name.as_str().unwrap());
        let now = clock::now().as_second();
        params.not_before = time_at(now - 60).into();
        let lifetime = i64::try_from(self.lifetime.lock().as_secs()).unwrap();
        params.not_after = time_at(now + lifetime).into();
        let key = RawKey(info.subject_pki.subject_public_key.data.to_vec());
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        pem::encode("CERTIFICATE", certificate.der())
    }

    /// A node's certificate with its key, in PEM, with the lifetime of the next certificates.
    fn pair(&self) -> String {
        let key = new_key().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        let names = &mut params.distinguished_name;
        names.push(DnType::OrganizationName, "system:nodes");
        names.push(DnType::CommonName, "system:node:node-1");
        let request = params.serialize_request(&key).unwrap();
        let request = pem::encode("CERTIFICATE REQUEST", request.der());
        let certificate = self.certificate(request.as_bytes());
        certificate + &pem::encode("PRIVATE KEY", key.serialized_der())
    }
}

fn time_at(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap())
}

fn options(dir: &Path, url: &str, rotate: bool) -> IdentityOptions {
    let bootstrap = dir.join("bootstrap.conf");
    fs::write(
        &bootstrap,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: '{url}', certificate-authority-data: Q0E=}}}}]\n\
             users: [{{name: u, user: {{token: abcdef.0123456789abcdef}}}}]\n"
        ),
    )
    .unwrap();
    IdentityOptions {
        kubeconfig: dir.join("kubelet.conf"),
        bootstrap_kubeconfig: Some(bootstrap),
        cert_dir: dir.join("pki"),
        rotate_certificates: rotate,
        starts_offline: false,
    }
}

async fn until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            time::sleep(Duration::from_millis(20)).await;
        }
    };
    time::timeout(Duration::from_secs(60), waiting)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_bootstrap_token_gets_a_certificate_and_a_kubeconfig() {
    let (cluster, url) = Cluster::start(false).await;
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &url, false);
    let (_, keeper) = join(&options, "node-1").await.unwrap();
    time::timeout(
        Duration::from_secs(60),
        keeper.run(CancellationToken::new()),
    )
    .await
    .unwrap();

    let requests = cluster.requests.lock().clone();
    assert_eq!(requests.len(), 1);
    let spec = &requests[0]["spec"];
    assert_eq!(
        spec["signerName"],
        "kubernetes.io/kube-apiserver-client-kubelet"
    );
    assert_eq!(spec["usages"], json!(["digital signature", "client auth"]));
    let name = requests[0]["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("node-csr-"), "{name}");

    let current = dir.path().join("pki/kubelet-client-current.pem");
    assert!(fs::symlink_metadata(&current).unwrap().is_symlink());
    assert!(!dir.path().join("pki").join(FIRST_KEY).exists());
    let text = fs::read_to_string(&options.kubeconfig).unwrap();
    assert!(
        text.contains("certificate-authority-data: \"Q0E=\""),
        "{text}"
    );
    let access = usable(&options.kubeconfig).unwrap();
    assert_eq!(access.url.host(), Some("127.0.0.1"));

    // Another start needs neither the token nor another request.
    fs::remove_file(options.bootstrap_kubeconfig.as_ref().unwrap()).unwrap();
    let (_, state) = open(&options).unwrap();
    assert!(matches!(state, CertificateState::Present { .. }));
}

#[tokio::test]
async fn a_certificate_in_files_stays_there_until_it_is_due() {
    let (cluster, url) = Cluster::start(false).await;
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &url, true);
    let file = dir.path().join("own.pem");
    fs::write(&file, cluster.pair()).unwrap();
    let inline = BASE64.encode(cluster.pair());
    for (user, is_foreign) in [
        (
            format!("client-certificate: {0}, client-key: {0}", file.display()),
            false,
        ),
        (
            format!("client-certificate-data: {inline}, client-key-data: {inline}"),
            true,
        ),
    ] {
        let text = fs::read_to_string(options.bootstrap_kubeconfig.as_ref().unwrap()).unwrap();
        let text = text.replace("token: abcdef.0123456789abcdef", &user);
        fs::write(&options.kubeconfig, text).unwrap();
        let (_, state) = open(&options).unwrap();
        let CertificateState::Present {
            pair,
            is_foreign: is_due,
            ..
        } = state
        else {
            panic!("{user}: no certificate");
        };
        assert!(pair.is_some(), "{user}");
        assert_eq!(is_due, is_foreign, "{user}");
        let stored = dir.path().join("pki/kubelet-client-current.pem").exists();
        assert_eq!(stored, is_foreign, "{user}");
    }
}

#[tokio::test]
async fn a_certificate_is_renewed_before_it_expires() {
    let (cluster, url) = Cluster::start(false).await;
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &url, true);
    // 60 of the 65 seconds of the certificate's lifetime have passed.
    *cluster.lifetime.lock() = Duration::from_secs(5);
    let (_, keeper) = join(&options, "node-1").await.unwrap();
    let cancel = CancellationToken::new();
    let keeping = tokio::spawn(keeper.run(cancel.clone()));
    let current = dir.path().join("pki/kubelet-client-current.pem");
    until(|| current.exists()).await;
    *cluster.lifetime.lock() = Duration::from_secs(24 * 3600);
    until(|| cluster.requests.lock().len() >= 2).await;
    let expiry = || {
        let text = fs::read(&current).unwrap_or_default();
        Pair::parse(&text, &text).map(|pair| pair.facts.not_after)
    };
    let now = clock::now();
    until(|| expiry().is_ok_and(|expiry| expiry.duration_since(now).as_hours() > 1)).await;
    cancel.cancel();
    keeping.await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_was_repaired_is_taken_without_a_restart() {
    use tokio_rustls::rustls::client::ResolvesClientCert as _;
    let (cluster, url) = Cluster::start(false).await;
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &url, true);
    let bootstrap = options.bootstrap_kubeconfig.take().unwrap();
    let access = ClusterAccess::read(&bootstrap).unwrap();
    let file = dir.path().join("node.pem");
    kubeconfig_file::write(&options.kubeconfig, &access.cluster, &file).unwrap();
    *cluster.lifetime.lock() = Duration::ZERO;
    let expired = cluster.pair();
    fs::write(&file, &expired).unwrap();
    let parsed = |text: &str| Pair::parse(text.as_bytes(), text.as_bytes()).unwrap();
    until(|| parsed(&expired).is_expired(clock::now())).await;

    let (server, _) = open(&options).unwrap();
    let source = client_source(server.clone(), options);
    let shown = || server.identity().resolve(&[], &[]).unwrap().cert.clone();
    source(false).await.unwrap();
    assert_eq!(shown(), parsed(&expired).key.cert, "there is no other");

    *cluster.lifetime.lock() = Duration::from_secs(24 * 3600);
    let valid = cluster.pair();
    fs::write(&file, &valid).unwrap();
    source(false).await.unwrap();
    assert_eq!(shown(), parsed(&valid).key.cert);
}

#[tokio::test]
async fn a_request_that_is_denied_is_said_so() {
    let (_cluster, url) = Cluster::start(true).await;
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), &url, false);
    let (_, keeper) = join(&options, "node-1").await.unwrap();
    let CertificateState::Bootstrap(access) = &keeper.state else {
        panic!("no bootstrap");
    };
    let error = keeper.try_bootstrap(access).await.unwrap_err().to_string();
    assert!(error.contains("is denied: Policy"), "{error}");
    assert!(!options.kubeconfig.exists());
}

#[tokio::test]
async fn an_expired_certificate_does_not_keep_what_was_kept_from_starting() {
    let (cluster, url) = Cluster::start(false).await;
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path(), &url, true);
    let bootstrap = options.bootstrap_kubeconfig.clone().unwrap();
    let access = ClusterAccess::read(&bootstrap).unwrap();
    let file = dir.path().join("node.pem");
    kubeconfig_file::write(&options.kubeconfig, &access.cluster, &file).unwrap();
    *cluster.lifetime.lock() = Duration::ZERO;
    let expired = cluster.pair();
    fs::write(&file, &expired).unwrap();
    let pair = Pair::parse(expired.as_bytes(), expired.as_bytes()).unwrap();
    until(|| pair.is_expired(clock::now())).await;
    // kubeadm does this once the node has joined.
    fs::remove_file(&bootstrap).unwrap();
    let error = open(&options).unwrap_err().to_string();
    assert!(error.contains("its certificate expired at"), "{error}");

    options.starts_offline = true;
    let (_, state) = open(&options).unwrap();
    assert!(matches!(
        state,
        CertificateState::Present { pair: Some(_), .. }
    ));
    assert!(!options.cert_dir.exists(), "no certificate is requested");
    options.rotate_certificates = false;
    open(&options).unwrap();
    // A broken kubeconfig is an error in any case.
    fs::write(&file, "").unwrap();
    open(&options).unwrap_err();
}

#[tokio::test]
async fn without_any_way_in_both_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path(), "http://127.0.0.1:1", false);
    fs::remove_file(options.bootstrap_kubeconfig.as_ref().unwrap()).unwrap();
    let error = join(&options, "node-1").await.unwrap_err().to_string();
    assert!(
        error.contains("kubelet.conf") && error.contains("bootstrap.conf"),
        "{error}"
    );
}

#[test]
fn a_key_is_its_owners_alone_whatever_was_in_its_place() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pki/first.key");
    let key = KeyPair::generate().unwrap();
    write_key(&path, &key).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    write_key(&path, &key).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
