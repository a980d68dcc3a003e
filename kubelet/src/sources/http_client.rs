//! A GET of a small document over HTTP or HTTPS.

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{HeaderMap, StatusCode, header::HOST};
use kubelet_http::{
    Exchange, GetError, TlsError,
    proxy::{Proxies, ProxyError},
    roots::{Roots, RootsError},
    url::Url,
};
use tokio::time;
use tokio_rustls::rustls::ClientConfig;

/// Deadline of a whole request, as upstream.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum length of a document in bytes, as upstream.
const MAX_LENGTH: usize = 10 << 20;
/// As Go's client.
const MAX_REDIRECTS: usize = 10;

/// Why a document could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0:?} is not an http or https URL")]
    Url(String),
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error(transparent)]
    Roots(#[from] RootsError),
    #[error("request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("request failed: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("{0}")]
    Status(StatusCode),
    #[error("cannot read the response: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the response is longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("stopped after {MAX_REDIRECTS} redirects")]
    Redirects,
    #[error("no response within {DEADLINE:?}")]
    Deadline,
}

/// Fetches documents with the same headers, through the proxies of the environment.
pub(super) struct HttpClient {
    headers: HeaderMap,
    proxies: Result<Proxies, ProxyError>,
    /// Created on first use.
    tls: Option<Arc<ClientConfig>>,
}

impl HttpClient {
    pub(super) fn new(mut headers: HeaderMap) -> Self {
        // The URL determines it, as upstream.
        headers.remove(HOST);
        Self {
            headers,
            proxies: Proxies::of_environment(),
            tls: None,
        }
    }

    /// Fetches the document at `url`.
    ///
    /// # Errors
    /// The request failed, or the status is not 200.
    pub(super) async fn get(&mut self, url: &str) -> Result<Bytes, FetchError> {
        time::timeout(DEADLINE, self.follow(url))
            .await
            .unwrap_or(Err(FetchError::Deadline))
    }

    async fn follow(&mut self, url: &str) -> Result<Bytes, FetchError> {
        let no_url = |url: &str| FetchError::Url(url.to_owned());
        let mut url = Url::parse(url).ok_or_else(|| no_url(url))?;
        let given_for = url.clone();
        let mut headers = self.headers.clone();
        let proxies = self.proxies.clone()?;
        for _ in 0..=MAX_REDIRECTS {
            let tls = if url.is_https() {
                Some(self.tls().await?)
            } else {
                None
            };
            let answered = kubelet_http::get(&url, &proxies, tls, None, &headers).await;
            let exchange = answered.map_err(|error| failed(&url, error))?;
            let location = exchange.location();
            match (exchange.response.status(), location) {
                (StatusCode::OK, _) => return read(exchange).await,
                (_, Some(location)) => {
                    url = url.join(&location).map_err(|_| no_url(&location))?;
                    // Any header may be a secret. A redirect out of the original host's domain
                    // drops them for good.
                    if !url.is_within(&given_for) {
                        headers.clear();
                    }
                }
                (status, None) => return Err(FetchError::Status(status)),
            }
        }
        Err(FetchError::Redirects)
    }

    async fn tls(&mut self) -> Result<Arc<ClientConfig>, FetchError> {
        let tls = match self.tls.take() {
            Some(tls) => tls,
            None => Arc::new(Roots::of_this_machine().client_config().await?),
        };
        Ok(Arc::clone(self.tls.insert(tls)))
    }
}

fn failed(url: &Url, error: GetError) -> FetchError {
    match error {
        GetError::Dial { source, .. }
        | GetError::Tls(TlsError::PlainHttp(source) | TlsError::Handshake(source)) => {
            FetchError::Connect {
                address: format!("{}:{}", url.host(), url.port()),
                source,
            }
        }
        GetError::Tls(TlsError::Name(_)) => FetchError::Url(url.to_string()),
        GetError::Request(error) => error.into(),
        GetError::Connection(error) => error.into(),
    }
}

async fn read(mut exchange: Exchange) -> Result<Bytes, FetchError> {
    match Limited::new(exchange.response.body_mut(), MAX_LENGTH)
        .collect()
        .await
    {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLong),
        Err(error) => Err(FetchError::Body(error)),
    }
}
