//! The runtime's streaming server, and its address as far as the runtime has reported it.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{StatusCode, Uri, uri},
    response::Response,
    routing::any,
};
use cri_proto::runtime::v1::{PodSandboxState, PortForwardRequest};
use cri_streaming::{Proxy, ProxyTimeouts, UrlError, parse_url};
use kubelet_http::roots::{Roots, RootsError};
use parking_lot::Mutex;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    NodeView,
    bounds::{GatePermit, Gates},
    metrics::Serving,
    response::error,
};

/// Requests below this path go to the streaming server, without this prefix.
const BASE: &str = "/cri";

/// Proxies streaming requests to the runtime.
#[derive(Debug)]
pub(super) struct StreamingServer {
    proxy: Proxy,
    /// Root certificates for a runtime whose streaming server uses TLS.
    roots: Roots,
    /// The TLS configuration with these roots, loaded on first use.
    tls: Mutex<Option<Arc<ClientConfig>>>,
    /// The origin of the last URL from the runtime.
    origin: Mutex<Option<Origin>>,
}

/// Scheme and authority of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    scheme: uri::Scheme,
    authority: uri::Authority,
}

/// Why a request cannot be proxied.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error("the runtime returned {url:?}, which {reason}")]
    NoUrl { url: String, reason: UrlError },
    #[error("the runtime returned a URL without a host, and its streaming server is unknown")]
    NoHost,
    #[error("the runtime's streaming server is unknown: no running sandbox to discover it with")]
    Unknown,
    #[error("cannot discover the runtime's streaming server: {0}")]
    NotReported(String),
}

impl Origin {
    fn of(uri: &Uri) -> Option<Self> {
        Some(Self {
            scheme: uri.scheme()?.clone(),
            authority: uri.authority()?.clone(),
        })
    }

    /// The URL of a path on this origin.
    fn at(self, path: uri::PathAndQuery) -> Option<Uri> {
        let uri = Uri::builder().scheme(self.scheme).authority(self.authority);
        uri.path_and_query(path).build().ok()
    }
}

impl StreamingServer {
    /// Proxied connections run as tasks of `tasks`, until `cancel`. `roots` verify a runtime that
    /// uses TLS.
    pub(super) fn new(roots: Roots, tasks: &TaskTracker, cancel: &CancellationToken) -> Self {
        Self {
            proxy: Proxy::new(ProxyTimeouts::default(), tasks.clone(), cancel.clone()),
            roots,
            tls: Mutex::new(None),
            origin: Mutex::new(None),
        }
    }

    /// Proxies a request to the URL that the runtime returned for it. `place` is held until the
    /// connection has ended.
    pub(super) async fn forward(&self, request: Request, url: &str, place: GatePermit) -> Response {
        match self.resolve(url).await {
            Ok(backend) => self.carry(request, &backend, place).await,
            Err(fault) => error(StatusCode::BAD_GATEWAY, fault),
        }
    }

    async fn carry(&self, request: Request, backend: &Uri, place: GatePermit) -> Response {
        let mut proxy = self.proxy.clone();
        if backend.scheme() == Some(&uri::Scheme::HTTPS) {
            proxy = match self.tls().await {
                Ok(tls) => proxy.with_tls(tls),
                Err(fault) => return error(StatusCode::BAD_GATEWAY, fault),
            };
        }
        let serving = request.extensions().get::<Arc<Serving>>().cloned();
        let kept = (place, serving);
        let response = proxy.forward_with(request, backend, kept).await;
        if response.status() == StatusCode::BAD_GATEWAY {
            self.forget(backend);
        }
        response.map(Body::new)
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>, RootsError> {
        let known = self.tls.lock().clone();
        if let Some(tls) = known {
            return Ok(tls);
        }
        let tls = Arc::new(self.roots.client_config().await?);
        *self.tls.lock() = Some(Arc::clone(&tls));
        Ok(tls)
    }

    /// Forgets the address of a server that failed. A restarted runtime may have another address or
    /// another certificate.
    fn forget(&self, backend: &Uri) {
        *self.tls.lock() = None;
        let mut known = self.origin.lock();
        if *known == Origin::of(backend) {
            *known = None;
        }
    }

    /// Completes a URL from the runtime. The origin of a complete URL is remembered, and used for
    /// URLs without one.
    async fn resolve(&self, url: &str) -> Result<Uri, AddressError> {
        let no_url = |reason| AddressError::NoUrl {
            url: url.to_owned(),
            reason,
        };
        let uri = parse_url(url).await.map_err(no_url)?;
        let mut known = self.origin.lock();
        if let Some(origin) = Origin::of(&uri) {
            *known = Some(origin);
            return Ok(uri);
        }
        let origin = known.clone().ok_or(AddressError::NoHost)?;
        let path = uri.path_and_query().cloned();
        path.and_then(|path| origin.at(path))
            .ok_or_else(|| no_url(UrlError::Malformed))
    }

    /// The origin of the streaming server: from an earlier URL, or from the URL of a port-forward
    /// to any ready sandbox.
    async fn origin<V: NodeView>(&self, view: &V) -> Result<Origin, AddressError> {
        if let Some(known) = self.origin.lock().clone() {
            return Ok(known);
        }
        let cri = view.cri();
        let not_reported =
            |error: kubelet_cri_client::CriError| AddressError::NotReported(error.to_string());
        let sandboxes = cri.list_pod_sandboxes().await.map_err(not_reported)?;
        let ready = sandboxes
            .into_iter()
            .find(|sandbox| sandbox.state() == PodSandboxState::SandboxReady)
            .ok_or(AddressError::Unknown)?;
        let url = cri
            .port_forward(PortForwardRequest {
                pod_sandbox_id: ready.id,
                port: Vec::new(),
            })
            .await
            .map_err(not_reported)?;
        Origin::of(&self.resolve(&url).await?).ok_or(AddressError::NoHost)
    }
}

/// `/cri/`: the runtime's streaming server, for clients with one of its tokens.
pub(super) fn routes<V: NodeView>(view: V, server: Arc<StreamingServer>, gates: Gates) -> Router {
    let proxied = any(move |request: Request| async move {
        let gate = match request.uri().path().split('/').nth(2) {
            Some("attach") => &gates.attached,
            Some("portforward") => &gates.port_forwards,
            _ => &gates.commands,
        };
        let place = match gate.enter() {
            Ok(place) => place,
            Err(refusal) => return *refusal,
        };
        let origin = match server.origin(&view).await {
            Ok(origin) => origin,
            Err(fault) => return error(StatusCode::BAD_GATEWAY, fault),
        };
        let path = request
            .uri()
            .path_and_query()
            .and_then(|path| path.as_str().strip_prefix(BASE))
            .and_then(|path| path.parse().ok());
        match path.and_then(|path| origin.at(path)) {
            Some(backend) => server.carry(request, &backend, place).await,
            None => error(
                StatusCode::BAD_REQUEST,
                "the path does not belong to a streaming server",
            ),
        }
    });
    Router::new().route("/cri/{*path}", proxied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> StreamingServer {
        let roots = Roots::of_this_machine();
        StreamingServer::new(roots, &TaskTracker::new(), &CancellationToken::new())
    }

    #[tokio::test]
    async fn a_url_without_a_host_is_at_the_last_one() {
        let server = server();
        assert!(server.resolve("/exec/token").await.is_err());
        let url = "https://127.0.0.1:7000/exec/a";
        assert_eq!(server.resolve(url).await.unwrap(), url);
        assert_eq!(
            server.resolve("/exec/b").await.unwrap(),
            "https://127.0.0.1:7000/exec/b"
        );
        assert!(server.resolve("http://[").await.is_err());
    }

    #[tokio::test]
    async fn an_address_where_nobody_answers_is_forgotten() {
        let server = server();
        let resolve = async |url: &str| server.resolve(url).await.unwrap();
        let old = resolve("http://127.0.0.1:7000/exec/a").await;
        resolve("http://127.0.0.1:7001/exec/b").await;
        // A request to the old server fails after the new one is known.
        server.forget(&old);
        let new = resolve("/exec/c").await;
        assert_eq!(new, "http://127.0.0.1:7001/exec/c");
        server.forget(&new);
        assert!(server.resolve("/exec/d").await.is_err());
    }
}
