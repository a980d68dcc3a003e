//! Port forwarding over a WebSocket: the client's SPDY stream is in binary messages, and goes to
//! the kubelet as plain SPDY.

use std::sync::Arc;

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    header::{
        CONNECTION, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_EXTENSIONS,
        SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
    },
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, split};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, handshake::derive_accept_key, protocol::Role},
};

use super::{location::Location, switched};
use crate::{
    Server,
    errors::ApiError,
    http::{ResponseBody, header, whole},
};

/// The prefix of WebSocket subprotocols that tunnel SPDY.
const PREFIX: &str = "SPDY/3.1+";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The maximum number of bytes in a message.
const PIECE: usize = 32 * 1024;

/// Whether a request asks for a WebSocket that tunnels SPDY.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    header(headers, "upgrade").eq_ignore_ascii_case("websocket") && !protocols(headers).is_empty()
}

/// The subprotocols that the client offers for the tunnelled SPDY.
fn protocols(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().strip_prefix(PREFIX))
        .filter(|name| name.ends_with("k8s.io"))
        .map(str::to_owned)
        .collect()
}

impl Server {
    /// Forwards the SPDY stream between the client's WebSocket and the kubelet.
    pub(super) async fn tunnel<B>(
        self: &Arc<Self>,
        mut request: Request<B>,
        location: &Location,
    ) -> Result<Response<ResponseBody>, ApiError> {
        let client = hyper::upgrade::on(&mut request);
        let mut headers = request.into_parts().0.headers;
        let names = protocols(&headers);
        let key = header(&headers, SEC_WEBSOCKET_KEY.as_str());
        if key.is_empty() {
            return Err(ApiError::bad_request(
                "unable to upgrade: a WebSocket needs Sec-WebSocket-Key",
            ));
        }
        for name in [
            SEC_WEBSOCKET_EXTENSIONS,
            SEC_WEBSOCKET_KEY,
            SEC_WEBSOCKET_PROTOCOL,
            SEC_WEBSOCKET_VERSION,
            STREAM_PROTOCOL,
        ] {
            headers.remove(name);
        }
        headers.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        for name in names {
            let name = HeaderValue::from_str(&name).map_err(ApiError::internal)?;
            headers.append(STREAM_PROTOCOL, name);
        }
        let kubelet = match self.ask(location, Method::POST, headers).await? {
            Ok(kubelet) => kubelet,
            Err(refused) => return Ok(refused),
        };
        let chosen = header(&kubelet.headers, STREAM_PROTOCOL.as_str());
        let connection = kubelet.connection;
        tokio::spawn(Arc::clone(self).while_available(async move {
            let (Ok(client), Ok(kubelet)) = tokio::join!(client, connection) else {
                return;
            };
            let client = TokioIo::new(client);
            let socket = WebSocketStream::from_raw_socket(client, Role::Server, None).await;
            let (mut to_client, mut from_client) = socket.split();
            let (mut from_kubelet, mut to_kubelet) = split(TokioIo::new(kubelet));
            let up = async {
                while let Some(Ok(message)) = from_client.next().await {
                    if let Message::Binary(data) = message
                        && to_kubelet.write_all(&data).await.is_err()
                    {
                        return;
                    }
                }
                let _ = to_kubelet.shutdown().await;
            };
            let down = async {
                let mut piece = vec![0; PIECE];
                while let Ok(length @ 1..) = from_kubelet.read(&mut piece).await {
                    let data = Bytes::copy_from_slice(&piece[..length]);
                    if to_client.send(Message::Binary(data)).await.is_err() {
                        return;
                    }
                }
                let _ = to_client.close().await;
            };
            tokio::join!(up, down);
        }));
        let mut headers = HeaderMap::new();
        let accept = derive_accept_key(key.as_bytes());
        for (name, value) in [
            (CONNECTION, "Upgrade".to_owned()),
            (UPGRADE, "websocket".to_owned()),
            (SEC_WEBSOCKET_ACCEPT, accept),
            (SEC_WEBSOCKET_PROTOCOL, format!("{PREFIX}{chosen}")),
        ] {
            let value = HeaderValue::from_str(&value).map_err(ApiError::internal)?;
            headers.insert(name, value);
        }
        let status = StatusCode::SWITCHING_PROTOCOLS;
        Ok(switched(status, headers, whole(Bytes::new())))
    }
}
