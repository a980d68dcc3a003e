//! HTTP requests of probes and hooks.

use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::{
    StatusCode,
    body::Incoming,
    header::{
        ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName,
        HeaderValue, REFERER, TRAILER, TRANSFER_ENCODING, USER_AGENT,
    },
};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use kubelet_host::version;
use kubelet_http::{
    Exchange, GetError, TlsError,
    proxy::Proxies,
    url::{self, Url},
};
use tokio::time::Instant;

use super::{
    outcome::Outcome,
    port::{self, PortError},
    tls,
};

/// More of an answer than this is not read, in bytes.
const MAX_BODY: usize = 10 * 1024;
/// Go's words, which people know and search for.
const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
const CUT_OFF: &str = "context deadline exceeded (Client.Timeout or context cancellation while \
                       reading body)";
/// Requests that one may lead to.
const MAX_REQUESTS: usize = 10;

/// Why a request cannot be made of an `httpGet` action.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It names no port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A header is invalid.
    #[error("invalid header {0:?}")]
    Header(String),
}

/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// It was asked over TLS, and answered without.
    #[error("Get \"{0}\": http: server gave HTTP response to HTTPS client")]
    PlainHttp(Url),
    /// No process listens, the connection broke, or the request timed out.
    #[error("Get \"{url}\": {reason}")]
    NoAnswer {
        /// What was asked for.
        url: Url,
        /// Why there is no answer.
        reason: String,
    },
    /// The answer's body could not be read.
    #[error("cannot read the response of \"{url}\": {reason}")]
    Body {
        /// What was asked for.
        url: Url,
        /// Why not.
        reason: String,
    },
}

/// A GET as probes and hooks send it.
#[derive(Clone, Debug)]
pub struct HttpGet {
    url: Url,
    /// What the spec says instead of the URL's own host.
    host: Option<HeaderValue>,
    headers: HeaderMap,
}

/// What a request was answered with.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status of the last answer.
    pub status: StatusCode,
    /// Its body, cut at 10 KiB.
    pub body: Vec<u8>,
}

impl HttpGet {
    /// The request of an action of `container`. `ip` is asked where the action
    /// names no host; `purpose` is who asks, for the user agent `kube-<purpose>`.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn new(
        action: &HTTPGetAction,
        container: Option<&Container>,
        ip: &str,
        purpose: &str,
    ) -> Result<Self, RequestError> {
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        let https = action.scheme.as_deref() == Some("HTTPS");
        let port = port::resolve(&action.port, container)?;
        let path = action.path.as_deref().unwrap_or_default();
        let mut headers = HeaderMap::new();
        for header in action.http_headers.iter().flatten() {
            let invalid = || RequestError::Header(header.name.clone());
            let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| invalid())?;
            let value = HeaderValue::from_str(&header.value)
                .or_else(|_| HeaderValue::from_bytes(header.value.as_bytes()))
                .map_err(|_| invalid())?;
            headers.append(name, value);
        }
        let given = headers.get(HOST).filter(|host| !host.is_empty()).cloned();
        let agent = format!("kube-{purpose}/{}", version::MAJOR_MINOR);
        let agent = HeaderValue::from_str(&agent)
            .map_err(|_| RequestError::Header(USER_AGENT.to_string()))?;
        only_first(&mut headers, &USER_AGENT, agent);
        only_first(&mut headers, &ACCEPT, HeaderValue::from_static("*/*"));
        // They are the connection's to say.
        for name in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, TRAILER] {
            headers.remove(name);
        }
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        Ok(Self {
            url: Url::new(https, host.unwrap_or(ip), port, path),
            host: given,
            headers,
        })
    }

    /// What is asked for.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The same without encryption, and without what must not be sent so.
    pub fn without_tls(&self) -> Self {
        let mut headers = self.headers.clone();
        headers.remove(AUTHORIZATION);
        Self {
            url: self.url.without_tls(),
            host: self.host.clone(),
            headers,
        }
    }
}

/// Leaves the header as the spec has it, or sets it; one that the spec has empty
/// is not sent.
fn only_first(headers: &mut HeaderMap, name: &HeaderName, default: HeaderValue) {
    let value = headers.get(name).cloned().unwrap_or(default);
    if value.is_empty() {
        headers.remove(name);
    } else {
        headers.insert(name, value);
    }
}

/// Sends a request and follows redirects on its host, all within `timeout`. Every
/// certificate is taken, no proxy is asked, and no connection is kept.
///
/// # Errors
/// See [`HttpError`]; an HTTP error status is not an error here.
pub async fn http_get(request: &HttpGet, timeout: Duration) -> Result<HttpAnswer, HttpError> {
    let begun = Instant::now();
    let answered = tokio::time::timeout(timeout, follow(request)).await;
    let mut exchange = answered.unwrap_or_else(|_| {
        Err(HttpError::NoAnswer {
            url: request.url.clone(),
            reason: LATE.to_owned(),
        })
    })?;
    let status = exchange.response.status();
    let failed = |reason| HttpError::Body {
        url: request.url.clone(),
        reason,
    };
    let left = timeout.saturating_sub(begun.elapsed());
    match tokio::time::timeout(left, read_body(exchange.response.body_mut())).await {
        Ok(Ok(body)) => Ok(HttpAnswer { status, body }),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed(CUT_OFF.to_owned())),
    }
}

async fn read_body(body: &mut Incoming) -> Result<Vec<u8>, hyper::Error> {
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Some(data) = frame?.data_ref() {
            let room = MAX_BODY - read.len();
            if data.len() >= room {
                read.extend_from_slice(&data[..room]);
                break;
            }
            read.extend_from_slice(data);
        }
    }
    Ok(read)
}

async fn follow(request: &HttpGet) -> Result<Exchange, HttpError> {
    let mut current = request.clone();
    for _ in 0..MAX_REQUESTS {
        let exchange = exchange(&current).await?;
        let Some(location) = exchange.location() else {
            return Ok(exchange);
        };
        let no_answer = |reason| HttpError::NoAnswer {
            url: current.url.clone(),
            reason,
        };
        let next = current
            .url
            .join(&location)
            .map_err(|error| no_answer(error.to_string()))?;
        if next.host() != request.url.host() {
            return Ok(exchange);
        }
        if !current.url.is_https() || next.is_https() {
            let referer = HeaderValue::from_str(&current.url.to_string());
            if let Ok(referer) = referer
                && !request.headers.contains_key(REFERER)
            {
                current.headers.insert(REFERER, referer);
            }
        }
        // A host that the spec gives holds for as long as no other is named.
        if url::is_absolute(&location) {
            current.host = None;
        }
        current.url = next;
    }
    Err(HttpError::NoAnswer {
        url: current.url,
        reason: format!("stopped after {MAX_REQUESTS} redirects"),
    })
}

async fn exchange(request: &HttpGet) -> Result<Exchange, HttpError> {
    let url = &request.url;
    let failed = |reason: String| HttpError::NoAnswer {
        url: url.clone(),
        reason,
    };
    let tls = url.is_https().then(tls::config).transpose();
    let tls = tls.map_err(|error| failed(format!("tls: {error}")))?;
    let answered = kubelet_http::get(
        url,
        &Proxies::default(),
        tls,
        request.host.as_ref(),
        &request.headers,
    )
    .await;
    answered.map_err(|error| match error {
        GetError::Tls(TlsError::PlainHttp(_)) => HttpError::PlainHttp(url.clone()),
        other => failed(other.to_string()),
    })
}

/// Asks, and judges the answer.
pub(super) async fn probe(request: &HttpGet, timeout: Duration) -> Result<Outcome, HttpError> {
    let answer = match http_get(request, timeout).await {
        Ok(answer) => answer,
        // As upstream: the server did answer, so the result is unknown.
        Err(error @ HttpError::Body { .. }) => return Err(error),
        Err(error) => return Ok(Outcome::Failure(error.to_string())),
    };
    let body = String::from_utf8_lossy(&answer.body);
    Ok(match answer.status.as_u16() {
        200..=299 => Outcome::Success,
        300..=399 => Outcome::Warning(format!("Probe terminated redirects, Response body: {body}")),
        status => {
            tracing::debug!(url = %request.url, status, %body, "HTTP probe failed");
            Outcome::Failure(format!("HTTP probe failed with statuscode: {status}"))
        }
    })
}

#[cfg(test)]
mod tests;
