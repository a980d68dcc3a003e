//! The runtime's streaming server: where it is, as far as the runtime has told.

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{StatusCode, Uri, uri},
    response::Response,
    routing::any,
};
use cri_proto::runtime::v1::{PodSandboxState, PortForwardRequest};
use cri_streaming::{Proxy, ProxyTimeouts};
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{NodeView, answer::error};

/// Below this path requests go to the streaming server as they are.
const BASE: &str = "/cri";

/// Hands streaming requests on.
#[derive(Debug)]
pub(super) struct StreamingServer {
    proxy: Proxy,
    /// The address in the last URL that the runtime gave.
    authority: Mutex<Option<uri::Authority>>,
}

/// Why a request cannot be handed on.
#[derive(Debug, thiserror::Error)]
pub(super) enum AddressError {
    #[error("the runtime gave {0:?}, which is no URL")]
    NoUrl(String),
    #[error("the runtime gave a URL without a host, and has not told its streaming server's")]
    NoHost,
    #[error(
        "the runtime's streaming server is not known: no sandbox runs that could be asked for it"
    )]
    Unknown,
    #[error("the runtime does not tell its streaming server: {0}")]
    Untold(String),
}

impl StreamingServer {
    /// Connections that are carried are tasks of `tasks`, until `cancel`.
    pub(super) fn new(tasks: &TaskTracker, cancel: &CancellationToken) -> Self {
        Self {
            proxy: Proxy::new(ProxyTimeouts::default(), tasks.clone(), cancel.clone()),
            authority: Mutex::new(None),
        }
    }

    /// Hands a request on to the URL that the runtime gave for it.
    pub(super) async fn forward(&self, request: Request, url: &str) -> Response {
        match self.resolve(url) {
            Ok(backend) => self.carry(request, &backend).await,
            Err(fault) => error(StatusCode::BAD_GATEWAY, fault),
        }
    }

    async fn carry(&self, request: Request, backend: &Uri) -> Response {
        let response = self.proxy.forward(request, backend).await;
        if response.status() == StatusCode::BAD_GATEWAY {
            self.forget(backend);
        }
        response.map(Body::new)
    }

    /// Nobody answers at this address as a streaming server does: a runtime that was started
    /// anew may have another, and is asked again.
    fn forget(&self, backend: &Uri) {
        let mut known = self.authority.lock();
        if known.as_ref() == backend.authority() {
            *known = None;
        }
    }

    /// The URL with its host, which is remembered; one without is the last one's.
    fn resolve(&self, url: &str) -> Result<Uri, AddressError> {
        let uri: Uri = url
            .parse()
            .map_err(|_| AddressError::NoUrl(url.to_owned()))?;
        let mut known = self.authority.lock();
        if let Some(authority) = uri.authority() {
            *known = Some(authority.clone());
            return Ok(uri);
        }
        let authority = known.clone().ok_or(AddressError::NoHost)?;
        at(authority, &uri).ok_or_else(|| AddressError::NoUrl(url.to_owned()))
    }

    /// Where the streaming server is: from a URL that the runtime gave before, or that it
    /// gives now for any of its sandboxes.
    async fn authority<V: NodeView>(&self, view: &V) -> Result<uri::Authority, AddressError> {
        if let Some(known) = self.authority.lock().clone() {
            return Ok(known);
        }
        let cri = view.cri();
        let untold = |error: crate::runtime::cri::CriError| AddressError::Untold(error.to_string());
        let sandboxes = cri.list_pod_sandboxes().await.map_err(untold)?;
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
            .map_err(untold)?;
        let uri = self.resolve(&url)?;
        uri.authority().cloned().ok_or(AddressError::NoHost)
    }
}

/// A path and query at an address.
fn at(authority: uri::Authority, uri: &Uri) -> Option<Uri> {
    let path = uri.path_and_query()?.clone();
    Uri::builder()
        .scheme("http")
        .authority(authority)
        .path_and_query(path)
        .build()
        .ok()
}

/// `/cri/`: the runtime's streaming server, for whoever has a token of it.
pub(super) fn routes<V: NodeView>(view: V, server: std::sync::Arc<StreamingServer>) -> Router {
    let proxied = any(move |request: Request| async move {
        let authority = match server.authority(&view).await {
            Ok(authority) => authority,
            Err(fault) => return error(StatusCode::BAD_GATEWAY, fault),
        };
        let path = request
            .uri()
            .path_and_query()
            .and_then(|path| path.as_str().strip_prefix(BASE))
            .and_then(|path| path.parse::<Uri>().ok());
        match path.and_then(|path| at(authority, &path)) {
            Some(backend) => server.carry(request, &backend).await,
            None => error(
                StatusCode::BAD_REQUEST,
                "the path is none of a streaming server",
            ),
        }
    });
    Router::new().route("/cri/{*path}", proxied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_without_a_host_is_at_the_last_one() {
        let server = StreamingServer::new(&TaskTracker::new(), &CancellationToken::new());
        assert!(server.resolve("/exec/token").is_err());
        let url = "http://127.0.0.1:7000/exec/a";
        assert_eq!(server.resolve(url).unwrap(), url);
        assert_eq!(
            server.resolve("/exec/b").unwrap(),
            "http://127.0.0.1:7000/exec/b"
        );
        assert!(server.resolve("http://[").is_err());
    }

    #[test]
    fn an_address_where_nobody_answers_is_forgotten() {
        let server = StreamingServer::new(&TaskTracker::new(), &CancellationToken::new());
        let old = server.resolve("http://127.0.0.1:7000/exec/a").unwrap();
        server.resolve("http://127.0.0.1:7001/exec/b").unwrap();
        // A request to the old one fails after the new one is known.
        server.forget(&old);
        let new = server.resolve("/exec/c").unwrap();
        assert_eq!(new, "http://127.0.0.1:7001/exec/c");
        server.forget(&new);
        assert!(server.resolve("/exec/d").is_err());
    }
}
