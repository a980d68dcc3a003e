//! The server on a socket, over TLS. Callers authenticate with a client certificate or a bearer
//! token.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use hyper::{Request, body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
        server::WebPkiClientVerifier,
    },
};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{
    ApiServer, Server,
    errors::ApiError,
    http::{failure, header},
    kubeconfig,
    request::Caller,
};

/// A listening server. It stops listening when this is dropped.
#[derive(Debug)]
pub struct Listening {
    address: SocketAddr,
    authority: String,
    task: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listening {
    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A kubeconfig for a caller with a client certificate of [`ApiServer::identity`].
    pub fn kubeconfig(&self, identity: &super::Identity) -> String {
        kubeconfig::with_certificate(&self.address.to_string(), &self.authority, identity)
    }

    /// A kubeconfig for a caller with a bearer token.
    pub fn kubeconfig_with_token(&self, token: &str) -> String {
        kubeconfig::with_token(&self.address.to_string(), &self.authority, token)
    }
}

impl ApiServer {
    /// Serves TLS on a free loopback port.
    pub async fn listen(&self) -> io::Result<Listening> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        self.listen_on(listener)
    }

    /// Serves TLS on a listener. The serving certificate is valid for the listener's address.
    pub fn listen_on(&self, listener: TcpListener) -> io::Result<Listening> {
        let address = listener.local_addr()?;
        let tls = self.0.tls(address.ip()).map_err(io::Error::other)?;
        let server = Arc::clone(&self.0);
        let task = tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                if server.check_available().is_ok() {
                    let (server, tls) = (Arc::clone(&server), tls.clone());
                    tokio::spawn(async move { server.connection(stream, &tls).await });
                }
            }
        });
        Ok(Listening {
            address,
            authority: self.authority_pem(),
            task,
        })
    }
}

impl Server {
    fn tls(&self, address: IpAddr) -> anyhow::Result<TlsAcceptor> {
        let names = ["localhost", "kubernetes", "kubernetes.default.svc"];
        let identity = self.authority.server(&self.clock, &[address], &names)?;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(
            self.authority.pem().as_bytes(),
        )?)?;
        let provider = Arc::new(ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(
                    identity.certificate.as_bytes(),
                )?],
                PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?,
            )?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Serves a connection until it ends or the server becomes unavailable.
    async fn connection(self: Arc<Self>, stream: TcpStream, tls: &TlsAcceptor) {
        let mut interruptions = self.interruptions.subscribe();
        let begun = interruptions.borrow_and_update().broken;
        let Ok(stream) = tls.accept(stream).await else {
            return;
        };
        let presented = stream.get_ref().1.peer_certificates();
        let certified = presented
            .and_then(<[_]>::first)
            .and_then(|certificate| subject(certificate));
        let server = Arc::clone(&self);
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, certified) = (Arc::clone(&server), certified.clone());
            async move {
                match server.authenticate(&request, certified) {
                    Ok(caller) => server.handle(request, caller).await,
                    Err(error) => Ok(failure(&error)),
                }
            }
        });
        let builder = auto::Builder::new(TokioExecutor::new());
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        let broken = interruptions.wait_for(|interruptions| interruptions.broken != begun);
        tokio::select! {
            biased;
            _ = broken => {}
            _ = connection => {}
        }
    }

    /// The caller of a request, from its client certificate or its bearer token.
    fn authenticate(
        &self,
        request: &Request<Incoming>,
        certified: Option<Caller>,
    ) -> Result<Caller, ApiError> {
        let authorization = header(request.headers(), "authorization");
        if let Some(caller) = certified {
            return Ok(caller);
        }
        if let Some(token) = authorization.strip_prefix("Bearer ") {
            let known = self.check_token(token.trim(), &[]);
            return known
                .map(|(caller, _)| caller)
                .ok_or_else(ApiError::unauthorized);
        }
        if self.settings.lock().policy.is_anonymous_allowed() {
            return Ok(Caller::anonymous());
        }
        Err(ApiError::unauthorized())
    }
}

/// The user and groups in the subject of a certificate.
fn subject(certificate: &CertificateDer<'_>) -> Option<Caller> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let user = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    let groups: Vec<&str> = parsed
        .subject()
        .iter_organization()
        .filter_map(|group| group.as_str().ok())
        .collect();
    Some(Caller::new(user, &groups))
}
