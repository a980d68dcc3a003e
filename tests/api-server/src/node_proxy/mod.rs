//! The requests that the server proxies to kubelets: logs, exec, attach, port forwarding, and
//! everything below `nodes/proxy`.
//!
//! WebSockets of exec and attach are forwarded unchanged, like upstream does for nodes that declare
//! `ExtendWebSocketsToKubelet`. For other nodes upstream translates them to SPDY, which is not
//! implemented here. WebSockets of port forwarding are translated unless the node declares the
//! feature.

mod backend;
mod carry;
mod location;
mod tunnel;

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header::{self, HeaderName, HeaderValue},
};
use serde_json::json;

use super::{
    Server,
    errors::ApiError,
    http::{ResponseBody, answer, header as text_of, read, whole},
    request::{Query, Target},
};
use location::Location;

/// The number of bytes that are read of a kubelet's error response.
const LONGEST_REFUSAL: usize = 2048;

/// Whether a kubelet answers a subresource.
pub(super) fn is_kubelet_s(target: &Target) -> bool {
    matches!(
        target.subresource.as_str(),
        "log" | "exec" | "attach" | "portforward" | "proxy"
    )
}

impl Server {
    /// Forwards a request to its kubelet.
    pub(super) async fn hand_on<B>(
        self: &Arc<Self>,
        request: Request<B>,
        target: &Target,
        query: &Query,
    ) -> Result<Response<ResponseBody>, ApiError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let upgrades = wants_upgrade(request.headers());
        let method = request.method().clone();
        match target.subresource.as_str() {
            "log" if method == Method::GET => self.log(target, query).await,
            "exec" | "attach" | "portforward"
                if matches!(method, Method::GET | Method::POST) && !upgrades =>
            {
                Err(ApiError::bad_request("Upgrade request required"))
            }
            "exec" | "attach" if matches!(method, Method::GET | Method::POST) => {
                let location = self.stream_location(target, query)?;
                self.upgrade(request, &location).await
            }
            "portforward" if matches!(method, Method::GET | Method::POST) => {
                let location = self.port_forward_location(target, query)?;
                if tunnel::is_wanted(request.headers()) && !location.takes_websockets {
                    self.tunnel(request, &location).await
                } else {
                    self.upgrade(request, &location).await
                }
            }
            "proxy" => {
                let location = self.node_location(target, request.uri())?;
                if upgrades {
                    self.upgrade(request, &location).await
                } else {
                    self.plain(request, &location).await
                }
            }
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    /// The response of a node's kubelet to a `GET`, which must succeed.
    pub(super) async fn ask_kubelet(&self, node: &str, path: &str) -> Result<String, ApiError> {
        let mut location = self.kubelet(node)?;
        path.clone_into(&mut location.path);
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = location.uri()?;
        let response = self.send(&location, request).await;
        let response = response.map_err(ApiError::internal)?;
        if response.status() != StatusCode::OK {
            let message = format!("{}: {}", location.url(), response.status());
            return Err(ApiError::internal(message));
        }
        let body = response.into_body().collect().await;
        let bytes = body.map_err(ApiError::internal)?.to_bytes();
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn log(
        &self,
        target: &Target,
        query: &Query,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let Some(location) = self.log_location(target, query)? else {
            // A pod without a node has no logs.
            return answer(StatusCode::OK, "text/plain", whole(Bytes::new()));
        };
        let mut request = Request::new(Full::new(Bytes::new()));
        *request.uri_mut() = location.uri()?;
        let response = self.send(&location, request).await.map_err(|error| {
            let message = format!("Get {:?}: {error}", location.url());
            ApiError::new(500, "", message)
        })?;
        if (200..=206).contains(&response.status().as_u16()) {
            return answer(StatusCode::OK, "text/plain", streamed(response.into_body()));
        }
        let status = response.status();
        Err(refusal(
            status,
            &beginning(response.into_body()).await,
            target,
        ))
    }

    /// Forwards a request below `nodes/proxy` that is not an upgrade.
    async fn plain<B>(
        &self,
        request: Request<B>,
        location: &Location,
    ) -> Result<Response<ResponseBody>, ApiError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let (head, body) = request.into_parts();
        let mut handed_on = Request::new(Full::new(read(body).await?));
        *handed_on.method_mut() = head.method;
        *handed_on.uri_mut() = location.uri()?;
        *handed_on.headers_mut() = head.headers;
        remove_hop_by_hop(handed_on.headers_mut());
        match self.send(location, handed_on).await {
            Ok(response) => Ok(relayed(response)),
            Err(error) => answer(
                StatusCode::SERVICE_UNAVAILABLE,
                "text/plain",
                whole(format!("error trying to reach service: {error}")),
            ),
        }
    }
}

/// Whether a request asks for an upgrade.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    text_of(headers, "connection")
        .to_ascii_lowercase()
        .contains("upgrade")
}

/// A kubelet's response as the client gets it.
fn relayed(response: Response<Incoming>) -> Response<ResponseBody> {
    let (head, body) = response.into_parts();
    let mut relayed = Response::new(streamed(body));
    *relayed.status_mut() = head.status;
    *relayed.headers_mut() = head.headers;
    remove_hop_by_hop(relayed.headers_mut());
    relayed
}

fn streamed(body: Incoming) -> ResponseBody {
    body.map_err(std::io::Error::other).boxed_unsync()
}

/// Removes the hop-by-hop headers, and those that the kubelet must not get.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    for name in [
        header::AUTHORIZATION,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::HOST,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        HeaderName::from_static("keep-alive"),
    ] {
        headers.remove(name);
    }
}

/// The beginning of a body, as text.
async fn beginning(mut body: Incoming) -> String {
    let mut bytes = Vec::new();
    while bytes.len() < LONGEST_REFUSAL
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
    }
    bytes.truncate(LONGEST_REFUSAL);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Converts a kubelet's error response to the server's error.
fn refusal(status: StatusCode, said: &str, target: &Target) -> ApiError {
    let name = target.name.as_deref().unwrap_or_default();
    let about = format!("( {} {name})", target.counted());
    let (reason, message) = match status.as_u16() {
        400 => return ApiError::bad_request(said),
        500 => return ApiError::internal(said),
        401 => (
            "Unauthorized",
            "the server has asked for the client to provide credentials".to_owned(),
        ),
        403 => ("Forbidden", said.to_owned()),
        404 => (
            "NotFound",
            "the server could not find the requested resource".to_owned(),
        ),
        503 => (
            "ServiceUnavailable",
            "the server is currently unable to handle the request".to_owned(),
        ),
        _ => (
            "",
            format!(
                "the server responded with the status code {} but did not return more information",
                status.as_u16()
            ),
        ),
    };
    let mut error = ApiError::new(status.as_u16(), reason, format!("{message} {about}"));
    error.details = Some(json!({
        "name": name, "kind": target.counted(),
        "causes": [{"reason": "UnexpectedServerResponse", "message": said}],
    }));
    error
}

/// The response to an upgrade request: the upgrade, or an error that closes the connection.
fn switched(status: StatusCode, headers: HeaderMap, body: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if status != StatusCode::SWITCHING_PROTOCOLS {
        remove_hop_by_hop(response.headers_mut());
        // The client may have sent bytes of the other protocol after the request.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}
