//! The HTTP handshake: negotiates the protocol before a connection is upgraded.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Method, Response, StatusCode,
    header::{
        CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
        SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE, X_CONTENT_TYPE_OPTIONS,
    },
    http::request::Parts,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// The header with the subprotocols that a SPDY client supports; in the answer, the chosen one.
pub(crate) const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
/// The header with the subprotocols that the server supports, sent if the client supports none of
/// them.
const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");
/// The name of SPDY in the `Upgrade` header.
pub(crate) const SPDY: &str = "SPDY/3.1";
const WEBSOCKET: &str = "websocket";

/// The server's answer before or instead of an upgrade.
pub(crate) type HandshakeResponse = Response<Full<Bytes>>;

/// Checks whether the client requests a WebSocket. Other clients are treated as SPDY clients.
pub(crate) fn is_websocket(headers: &HeaderMap) -> bool {
    wants_upgrade(headers)
        && values(headers, &UPGRADE).any(|name| name.eq_ignore_ascii_case(WEBSOCKET))
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.get_all(CONNECTION).iter().any(|value| {
        let value = value.as_bytes().to_ascii_lowercase();
        value.windows(7).any(|part| part == b"upgrade")
    })
}

/// Returns the non-empty, comma-separated values of a header.
fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

/// Negotiates an upgrade to SPDY with one of the `supported` subprotocols, in the client's order of
/// preference.
pub(crate) fn spdy<'p>(
    request: &Parts,
    supported: &[&'p str],
) -> Result<(&'p str, HandshakeResponse), Box<HandshakeResponse>> {
    let headers = &request.headers;
    if !headers.contains_key(STREAM_PROTOCOL) {
        return Err(refuse(
            StatusCode::BAD_REQUEST,
            format!(
                "unable to upgrade: header X-Stream-Protocol-Version does not exist in request with {} headers",
                headers.keys_len()
            ),
        ));
    }
    let wanted: Vec<&str> = values(headers, &STREAM_PROTOCOL).collect();
    if wanted.is_empty() {
        return Err(refuse(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: header X-Stream-Protocol-Version names no protocol".into(),
        ));
    }
    let Some(chosen) = wanted
        .iter()
        .find_map(|want| supported.iter().find(|has| has == &want))
    else {
        let mut answer = refuse(
            StatusCode::FORBIDDEN,
            format!(
                "unable to upgrade: unable to negotiate protocol: client supports {wanted:?}, server accepts {supported:?}"
            ),
        );
        for name in supported {
            if let Ok(value) = HeaderValue::from_str(name) {
                answer.headers_mut().append(ACCEPTED_PROTOCOLS, value);
            }
        }
        return Err(answer);
    };
    let named = values(headers, &UPGRADE).any(|name| name.eq_ignore_ascii_case(SPDY));
    if !wants_upgrade(headers) || !named {
        return Err(refuse(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: missing upgrade headers in request: Connection: Upgrade and Upgrade: SPDY/3.1, or a WebSocket's, are needed".into(),
        ));
    }
    let mut answer = switching(SPDY);
    if let Ok(value) = HeaderValue::from_str(chosen) {
        answer.headers_mut().insert(STREAM_PROTOCOL, value);
    }
    Ok((chosen, answer))
}

/// Negotiates an upgrade to WebSocket with a subprotocol that `parse` accepts, in the client's
/// order of preference. For a client that requests none, `parse` is called with "".
pub(crate) fn websocket<P>(
    request: &Parts,
    parse: impl Fn(&str) -> Option<P>,
) -> Result<(P, HandshakeResponse), Box<HandshakeResponse>> {
    let headers = &request.headers;
    let key = headers.get(SEC_WEBSOCKET_KEY);
    let (&Method::GET, Some(key)) = (&request.method, key) else {
        return Err(refuse(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: a WebSocket needs a GET request with Sec-WebSocket-Key".into(),
        ));
    };
    if headers
        .get(SEC_WEBSOCKET_VERSION)
        .is_none_or(|version| version != "13")
    {
        let mut answer = refuse(
            StatusCode::BAD_REQUEST,
            "unable to upgrade: Sec-WebSocket-Version must be 13".into(),
        );
        answer
            .headers_mut()
            .insert(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return Err(answer);
    }
    let mut wanted = values(headers, &SEC_WEBSOCKET_PROTOCOL).peekable();
    let chosen = if wanted.peek().is_none() {
        parse("").map(|protocol| (protocol, ""))
    } else {
        wanted.find_map(|name| parse(name).map(|protocol| (protocol, name)))
    };
    let Some((protocol, name)) = chosen else {
        let wanted: Vec<&str> = values(headers, &SEC_WEBSOCKET_PROTOCOL).collect();
        return Err(refuse(
            StatusCode::FORBIDDEN,
            format!("unable to upgrade: requested protocol(s) are not supported: {wanted:?}"),
        ));
    };
    let mut answer = switching(WEBSOCKET);
    let accept = derive_accept_key(key.as_bytes());
    for (header, value) in [
        (SEC_WEBSOCKET_ACCEPT, accept.as_str()),
        (SEC_WEBSOCKET_PROTOCOL, name),
    ] {
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
            answer.headers_mut().insert(header, value);
        }
    }
    Ok((protocol, answer))
}

fn switching(protocol: &'static str) -> HandshakeResponse {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(protocol));
    answer
}

/// Builds an error response in the form of Go's `http.Error`.
pub(crate) fn refuse(status: StatusCode, message: String) -> Box<HandshakeResponse> {
    let mut answer = Response::new(Full::from(message + "\n"));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // A connection is used for one request only.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Box::new(answer)
}
