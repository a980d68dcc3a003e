//! Server and client certificates.

use std::fs;

use kubelet_server::{
    ClusterDependencies, Servers,
    options::{CertificateSource, ServerOptions},
    tls::parameters::TlsParameters,
};
use tokio_rustls::rustls::version::TLS12;

use crate::{
    client::Authority,
    node::{Node, secure_options},
};

#[tokio::test]
async fn a_changed_certificate_is_shown_from_the_next_connection_on() {
    let servers = Authority::new("servers");
    let files = tempfile::tempdir().unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| files.path().join(name));
    let write = |authority: &Authority| {
        let identity = authority.server("node-1");
        fs::write(&certificate, identity.certificate).unwrap();
        fs::write(&key, identity.key).unwrap();
    };
    write(&servers);
    let node = Node::with(|options| {
        options.certificate = CertificateSource::Files {
            certificate: certificate.clone(),
            key: key.clone(),
        };
    })
    .await;
    let mut caller = node.admin();
    caller.trusts.clone_from(&servers.pem);
    assert_eq!(caller.get("/healthz").await.status, 200);

    let others = Authority::new("others");
    write(&others);
    caller.connect().await.unwrap_err();
    caller.trusts.clone_from(&others.pem);
    assert_eq!(caller.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn changed_client_authorities_count_from_the_next_connection_on() {
    let node = Node::in_cluster().await;
    let before = node.admin();
    assert_eq!(before.get("/healthz").await.status, 200);
    let others = Authority::new("others");
    let after = node
        .stranger
        .with_identity(others.client("admin", "admins"));
    assert_eq!(after.get("/healthz").await.status, 401);

    fs::write(node.dir.path().join("ca.crt"), &others.pem).unwrap();
    assert_eq!(after.get("/healthz").await.status, 200);
    assert_eq!(before.get("/healthz").await.status, 401);
}

#[tokio::test]
async fn the_least_version_is_kept_to() {
    let node = Node::with(|options| {
        options.tls = TlsParameters::parse("VersionTLS13", &[], &[]).unwrap();
    })
    .await;
    let mut caller = node.admin();
    assert_eq!(caller.get("/healthz").await.status, 200);
    caller.versions = vec![&TLS12];
    caller.connect().await.unwrap_err();
}

#[tokio::test]
async fn webhooks_without_an_api_server_are_refused_by_name() {
    for (field, change) in [
        ("authentication.webhook.enabled", true),
        ("authorization.mode", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut secure = secure_options(dir.path().to_owned());
        if change {
            secure.access.authentication.webhook = true;
        } else {
            secure.access.authorization = kubelet_server::options::AuthorizationMode::Webhook {
                authorized_ttl: std::time::Duration::ZERO,
                unauthorized_ttl: std::time::Duration::ZERO,
            };
        }
        let options = ServerOptions {
            secure: Some(secure),
            ..ServerOptions::default()
        };
        let error = Servers::bind(&options, dir.path(), ClusterDependencies::default())
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("no client provided") && error.contains(field),
            "{error}"
        );
    }
}
