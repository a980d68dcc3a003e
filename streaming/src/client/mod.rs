//! The client side over SPDY or WebSocket, as kubectl and crictl use it with the URL from a
//! runtime.

mod command;
mod port_forward;

use std::{io, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1,
    header::{
        CONNECTION, HOST, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
    upgrade::Upgraded,
};
use hyper_util::rt::TokioIo;
use tokio_rustls::rustls;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{handshake::derive_accept_key, protocol::Role},
};

pub use command::{Command, Resizer, StatusReader};
pub use port_forward::{Forwarded, Forwarder};

use crate::{
    dial::{DialError, dial},
    handshake::{SPDY, STREAM_PROTOCOL},
    spdy,
    url::parse_url,
    websocket,
};

/// The maximum size of a refusal's body in bytes.
const LONGEST_REFUSAL: usize = 64 * 1024;

/// The reason why a session was not established.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL does not name a streaming server.
    #[error("{url:?}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// The problem with the URL.
        reason: String,
    },
    /// The server is unreachable, or the connection failed.
    #[error("{action} {authority}: {source}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The server's host and port.
        authority: String,
        /// The cause.
        source: io::Error,
    },
    /// The server refused the upgrade.
    #[error("{status}: {text}")]
    Refused {
        /// The HTTP status.
        status: StatusCode,
        /// The response's body, without trailing white space.
        text: String,
    },
    /// The server upgraded to an unexpected protocol.
    #[error("the server upgraded to an unexpected protocol: {0}")]
    Protocol(String),
    /// The SPDY connection failed.
    #[error("open a stream: {0}")]
    Spdy(#[from] spdy::Error),
}

/// A client of streaming servers.
#[derive(Clone, Debug, Default)]
pub struct Client {
    tls: Option<Arc<rustls::ClientConfig>>,
}

/// The protocol that carries the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// SPDY/3.1.
    Spdy,
    /// WebSocket.
    WebSocket,
}

// === impl Client ===

impl Client {
    /// Creates a client that supports https as well.
    pub fn with_tls(tls: Arc<rustls::ClientConfig>) -> Self {
        Self { tls: Some(tls) }
    }

    /// Upgrades to SPDY; returns the one of `protocols` that the server chose.
    async fn spdy(
        &self,
        url: &str,
        protocols: &[&'static str],
    ) -> Result<(TokioIo<Upgraded>, String), ClientError> {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
        for name in protocols {
            headers.append(STREAM_PROTOCOL, HeaderValue::from_static(name));
        }
        let (io, headers) = self.upgrade(url, Method::POST, headers).await?;
        let chosen = text(&headers, STREAM_PROTOCOL.as_str());
        Ok((io, chosen))
    }

    /// Upgrades to WebSocket; returns the one of `protocols` that the server chose.
    async fn websocket(
        &self,
        url: &str,
        protocols: &[&'static str],
    ) -> Result<(WebSocketStream<TokioIo<Upgraded>>, String), ClientError> {
        let mut random = [0; 16];
        getrandom::fill(&mut random)
            .map_err(|error| ClientError::Protocol(format!("no random key: {error}")))?;
        let key = STANDARD.encode(random);
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        if let Ok(key) = HeaderValue::from_str(&key) {
            headers.insert(SEC_WEBSOCKET_KEY, key);
        }
        if let Ok(names) = HeaderValue::from_str(&protocols.join(", "))
            && !protocols.is_empty()
        {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, names);
        }
        let (io, headers) = self.upgrade(url, Method::GET, headers).await?;
        let accepted = text(&headers, SEC_WEBSOCKET_ACCEPT.as_str());
        if accepted != derive_accept_key(key.as_bytes()) {
            let found = format!("Sec-WebSocket-Accept is {accepted:?}");
            return Err(ClientError::Protocol(found));
        }
        let chosen = text(&headers, SEC_WEBSOCKET_PROTOCOL.as_str());
        let config = Some(websocket::config());
        let socket = WebSocketStream::from_raw_socket(io, Role::Client, config).await;
        Ok((socket, chosen))
    }

    async fn upgrade(
        &self,
        url: &str,
        method: Method,
        headers: HeaderMap,
    ) -> Result<(TokioIo<Upgraded>, HeaderMap), ClientError> {
        let bad = |reason: &str| ClientError::Url {
            url: url.to_owned(),
            reason: reason.to_owned(),
        };
        let parsed = parse_url(url).await;
        let uri = parsed.map_err(|error| bad(&error.to_string()))?;
        let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
        let failed = |action: &'static str| {
            let authority = authority.to_string();
            move |source: io::Error| ClientError::Io {
                action,
                authority,
                source,
            }
        };
        let dialled = dial(&uri, self.tls.as_ref()).await;
        let io = dialled.map_err(|error| match error {
            DialError::Address(reason) => bad(reason),
            DialError::Connect(source) => failed("connect to")(source),
            DialError::Tls(source) | DialError::Certificate(source) => {
                failed("perform the TLS handshake with")(source)
            }
        })?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(io))
            .await
            .map_err(|error| failed("speak HTTP with")(io::Error::other(error)))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a streaming connection ended");
            }
        });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().map_err(|_| bad("has no path"))?;
        *request.headers_mut() = headers;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|_| bad("has no host"))?;
        request.headers_mut().insert(HOST, host);
        let connection = HeaderValue::from_static("Upgrade");
        request.headers_mut().insert(CONNECTION, connection);
        let mut answer = sender
            .send_request(request)
            .await
            .map_err(|error| failed("send the request to")(io::Error::other(error)))?;
        let status = answer.status();
        if status != StatusCode::SWITCHING_PROTOCOLS {
            let body = Limited::new(answer.into_body(), LONGEST_REFUSAL);
            let body = body.collect().await.map_err(io::Error::other);
            let body = body.map_err(failed("read the response of"))?.to_bytes();
            let text = String::from_utf8_lossy(&body).trim_end().to_owned();
            return Err(ClientError::Refused { status, text });
        }
        let upgraded = hyper::upgrade::on(&mut answer)
            .await
            .map_err(|error| failed("upgrade the connection to")(io::Error::other(error)))?;
        Ok((TokioIo::new(upgraded), answer.headers().clone()))
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
