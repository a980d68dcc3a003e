//! The kubelet's HTTP client for GET requests, one per connection. The caller decides which
//! certificates to trust, which redirects to follow and how much of a response to read.

#![forbid(unsafe_code)]

pub mod proxy;
pub mod roots;
mod tls;
pub mod unverified;
pub mod url;

use std::{io, sync::Arc};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{
    Request, Response, Uri,
    body::Incoming,
    client::conn::{http1, http2},
    header::{CONNECTION, HOST, HeaderMap, HeaderValue, LOCATION, PROXY_AUTHORIZATION},
};
use hyper_util::{
    client::legacy::connect::HttpConnector,
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::TcpStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_util::{either::Either, task::AbortOnDropHandle};

pub use self::tls::TlsError;
use self::{
    proxy::{Proxies, Proxy},
    url::Url,
};

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The TCP connection failed.
    #[error("dial tcp {address}: {}", connect_error(source))]
    Dial {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The request is not valid HTTP.
    #[error(transparent)]
    Request(#[from] hyper::http::Error),
    /// The connection failed before the response.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
}

/// Why a connection failed, in the words of Go's `net` package, which people know and search for:
/// `connect: connection refused`.
pub fn connect_error(error: &io::Error) -> String {
    let text = error.to_string();
    let Some((text, _)) = text.split_once(" (os error ") else {
        return text;
    };
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    let text: String = first.into_iter().chain(letters).collect();
    format!("connect: {text}")
}

/// A response, and the connection that delivers its body.
#[derive(Debug)]
pub struct Exchange {
    /// The response; its body is still to be read.
    pub response: Response<Incoming>,
    _connection: AbortOnDropHandle<()>,
}

impl Exchange {
    /// The target of a redirect.
    pub fn location(&self) -> Option<String> {
        let follows = matches!(self.response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
        let location = self.response.headers().get(LOCATION);
        let location = location.filter(|location| follows && !location.is_empty())?;
        Some(String::from_utf8_lossy(location.as_bytes()).into_owned())
    }
}

/// Requests a URL through its proxy, over TLS with the configuration `tls`, or in plain text without
/// one. `host` replaces the `Host` header.
///
/// # Errors
/// See [`GetError`]. A response with an error status is not an error.
pub async fn get(
    url: &Url,
    proxies: &Proxies,
    tls: Option<Arc<ClientConfig>>,
    host: Option<&HeaderValue>,
    headers: &HeaderMap,
) -> Result<Exchange, GetError> {
    let server = url.server();
    let proxy = server.as_ref().and_then(|server| proxies.of(server));
    // As in Go, an HTTP proxy gets the whole URL if the request is in plain text.
    let forwarder = proxy.as_ref().and_then(Proxy::forwarder);
    let forwarder = forwarder.filter(|_| tls.is_none());
    let dialled = match (&forwarder, server) {
        (Some(forwarder), _) => TcpStream::connect((forwarder.host, forwarder.port)).await,
        (None, Some(server)) if proxy.is_some() => {
            let mut tcp = HttpConnector::new();
            tcp.enforce_http(false);
            let tunnel = proxies.connect(tcp, server).await;
            tunnel.map_err(io::Error::other)
        }
        _ => TcpStream::connect((url.host(), url.port())).await,
    };
    let stream = dialled.map_err(|source| GetError::Dial {
        address: url.authority(),
        source,
    })?;
    let (stream, is_http2) = match tls {
        Some(tls) => {
            let stream = tls::connect(stream, url.host(), tls).await?;
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            (Either::Left(stream), is_http2)
        }
        None => (Either::Right(stream), false),
    };
    let stream = TokioIo::new(stream);
    let mut request = Request::new(Empty::<Bytes>::new());
    request.headers_mut().clone_from(headers);
    let uri = Uri::builder().path_and_query(url.target());
    if is_http2 {
        let host = host.and_then(|host| host.to_str().ok());
        let authority = host.map_or_else(|| url.authority(), str::to_owned);
        *request.uri_mut() = uri.scheme("https").authority(authority).build()?;
        request.headers_mut().remove(CONNECTION);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
        let _connection = drive(connection);
        let response = sender.send_request(request).await?;
        return Ok(Exchange {
            response,
            _connection,
        });
    }
    *request.uri_mut() = match forwarder {
        Some(forwarder) => {
            if let Some(authorization) = forwarder.authorization {
                let headers = request.headers_mut();
                headers.insert(PROXY_AUTHORIZATION, authorization.clone());
            }
            uri.scheme("http").authority(url.authority()).build()?
        }
        None => uri.build()?,
    };
    let host = match host {
        Some(host) => host.clone(),
        None => HeaderValue::from_str(&url.authority()).map_err(hyper::http::Error::from)?,
    };
    request.headers_mut().insert(HOST, host);
    let (mut sender, connection) = http1::handshake(stream).await?;
    let _connection = drive(connection);
    let response = sender.send_request(request).await?;
    Ok(Exchange {
        response,
        _connection,
    })
}

/// Drives a connection in the background. Its errors reach the caller through the response.
fn drive<T>(connection: impl Future<Output = T> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }))
}
