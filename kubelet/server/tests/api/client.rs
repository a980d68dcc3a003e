//! A client of the secure port and its identity.

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore, SupportedProtocolVersion,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
        version::{TLS12, TLS13},
    },
};

/// A certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// A client certificate with this common name and organisation, and its key.
    pub(crate) fn client(&self, name: &str, group: &str) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    /// A server certificate for this name, and its key.
    pub(crate) fn server(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    fn sign(&self, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub(crate) struct Identity {
    pub certificate: String,
    pub key: String,
}

/// A client.
#[derive(Clone)]
pub(crate) struct Caller {
    pub address: String,
    /// The authority that it trusts to have signed the kubelet's certificate.
    pub trusts: String,
    pub identity: Option<Identity>,
    pub token: Option<String>,
    pub versions: Vec<&'static SupportedProtocolVersion>,
}

/// The response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Caller {
    pub(crate) fn new(address: String, trusts: String) -> Self {
        Self {
            address,
            trusts,
            identity: None,
            token: None,
            versions: vec![&TLS12, &TLS13],
        }
    }

    pub(crate) fn with_identity(&self, identity: Identity) -> Self {
        let mut caller = self.clone();
        caller.identity = Some(identity);
        caller
    }

    pub(crate) fn with_token(&self, token: &str) -> Self {
        let mut caller = self.clone();
        caller.token = Some(token.to_owned());
        caller
    }

    /// Connects and performs the TLS handshake.
    pub(crate) async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.trusts.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let certificates = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
                    .map(Result::unwrap)
                    .collect();
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                config.with_client_auth_cert(certificates, key).unwrap()
            }
        };
        let stream = TcpStream::connect(&self.address).await?;
        let name = ServerName::try_from("node-1").unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await
    }

    /// Sends a request with these additional headers and the body.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &str,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut stream = self.connect().await?;
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: node-1\r\n");
        if let Some(token) = &self.token {
            request += &format!("Authorization: Bearer {token}\r\n");
        }
        for header in headers {
            request += &format!("{header}\r\n");
        }
        if !body.is_empty() {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        stream
            .write_all(format!("{request}\r\n{body}").as_bytes())
            .await?;
        Ok(stream)
    }

    pub(crate) async fn request(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = self
            .send(method, path, &["Connection: close"], body)
            .await
            .unwrap();
        let mut answer = Vec::new();
        // The server may close the connection without `close_notify`; the response is complete
        // anyway.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        Answer {
            status: head
                .split(' ')
                .nth(1)
                .and_then(|code| code.parse().ok())
                .unwrap_or(0),
            head: head.to_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.request("GET", path, "").await
    }
}

/// Reads a message head, including the empty line.
pub(crate) async fn read_head(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}
