//! Streams over TLS, with a certificate given to the shim.

use std::{fs, sync::Arc};

use cri_streaming::client::{Client, ClientError};
use e2e::{
    cri::{CommandResult, Cri},
    node::Node,
};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{BOTH, OUTPUTS};

#[tokio::test]
async fn streams_come_over_tls_with_the_certificate_that_was_given() {
    let mut node = Node::with_shim().await.unwrap();
    node.stop_shim().await.unwrap();
    let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (node.path("streaming.crt"), node.path("streaming.key"));
    fs::write(&certificate, own.cert.pem()).unwrap();
    fs::write(&key, own.signing_key.serialize_pem()).unwrap();
    let certificate = format!("--streaming-tls-cert-file={}", certificate.display());
    let key = format!("--streaming-tls-private-key-file={}", key.display());
    node.start_shim_with(&[&certificate, &key]).await.unwrap();

    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("p", &["sleep", "1000"]).await.unwrap();
    let client = |roots| {
        let tls = ClientConfig::builder().with_root_certificates(roots);
        Client::with_tls(Arc::new(tls.with_no_client_auth()))
    };
    let mut roots = RootCertStore::empty();
    let strangers = client(roots.clone());
    roots.add(own.cert.der().clone()).unwrap();
    let trusting = client(roots);
    for over in BOTH {
        let url = cri.exec_url(&id, &["echo", "seen"], OUTPUTS).await.unwrap();
        assert!(url.starts_with("https://"), "{url}");
        let refused = strangers.command(&url, over, OUTPUTS).await;
        assert!(matches!(refused, Err(ClientError::Io { .. })));
        let command = trusting.command(&url, over, OUTPUTS).await.unwrap();
        assert_eq!(CommandResult::of(command).await.unwrap().out, "seen\n");
        // Connections without TLS are refused.
        let url = cri.exec_url(&id, &["echo", "seen"], OUTPUTS).await.unwrap();
        let url = url.replace("https://", "http://");
        let clear = Client::default().command(&url, over, OUTPUTS).await;
        assert!(clear.is_err());
    }
}
