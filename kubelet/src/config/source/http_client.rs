//! A GET of a small document over HTTP or HTTPS.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{HeaderMap, StatusCode, header::HOST};
use tokio::time;
use tokio_rustls::rustls::{
    self, ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

use crate::http::{self, Exchange, GetError, TlsError, url::Url};

/// For a whole request, as upstream.
const DEADLINE: Duration = Duration::from_secs(10);
/// Longest document, as upstream, in bytes.
const MAX_LENGTH: usize = 10 << 20;
/// As many as Go's client follows.
const MAX_REDIRECTS: usize = 10;
/// Where distributions keep the roots that they trust; the first one is taken.
const ROOTS: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Why a document cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("{0:?} is no http or https URL")]
    Url(String),
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: io::Error },
    #[error("no trusted roots in {0}")]
    Roots(String),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("request: {0}")]
    Http(#[from] hyper::Error),
    #[error("request: {0}")]
    Request(#[from] hyper::http::Error),
    #[error("{0}")]
    Status(StatusCode),
    #[error("the answer: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer is longer than {MAX_LENGTH} bytes")]
    TooLong,
    #[error("stopped after {MAX_REDIRECTS} redirects")]
    Redirects,
    #[error("no answer within {DEADLINE:?}")]
    Deadline,
}

/// Asks for documents with the same headers.
pub(super) struct HttpClient {
    headers: HeaderMap,
    /// Made when it is first needed.
    tls: Option<Arc<ClientConfig>>,
}

impl HttpClient {
    pub(super) fn new(mut headers: HeaderMap) -> Self {
        // The URL says it, as with upstream.
        headers.remove(HOST);
        Self { headers, tls: None }
    }

    /// The document at `url`.
    ///
    /// # Errors
    /// It cannot be had, or the status is another one than 200.
    pub(super) async fn get(&mut self, url: &str) -> Result<Bytes, FetchError> {
        time::timeout(DEADLINE, self.follow(url))
            .await
            .unwrap_or(Err(FetchError::Deadline))
    }

    async fn follow(&mut self, url: &str) -> Result<Bytes, FetchError> {
        let no_url = |url: &str| FetchError::Url(url.to_owned());
        let mut url = Url::parse(url).ok_or_else(|| no_url(url))?;
        for _ in 0..=MAX_REDIRECTS {
            let tls = if url.is_https() {
                Some(self.tls().await?)
            } else {
                None
            };
            let answered = http::get(&url, tls, None, &self.headers).await;
            let exchange = answered.map_err(|error| failed(&url, error))?;
            let location = exchange.location();
            match (exchange.response.status(), location) {
                (StatusCode::OK, _) => return read(exchange).await,
                (_, Some(location)) => url = url.join(&location).map_err(|_| no_url(&location))?,
                (status, None) => return Err(FetchError::Status(status)),
            }
        }
        Err(FetchError::Redirects)
    }

    async fn tls(&mut self) -> Result<Arc<ClientConfig>, FetchError> {
        let tls = match self.tls.take() {
            Some(tls) => tls,
            None => config().await?,
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

async fn config() -> Result<Arc<ClientConfig>, FetchError> {
    let paths: Vec<PathBuf> = match std::env::var_os("SSL_CERT_FILE") {
        Some(path) => vec![PathBuf::from(path)],
        None => ROOTS.iter().map(PathBuf::from).collect(),
    };
    let names: Vec<String> = paths
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let no_roots = || FetchError::Roots(names.join(", "));
    let roots = tokio::task::spawn_blocking(move || paths.iter().find_map(|path| roots(path)));
    let roots = roots.await.ok().flatten().ok_or_else(no_roots)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The roots in a file; none when there are none that can be read.
fn roots(path: &Path) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).ok()?;
    // Bundles have a few that no library takes.
    roots.add_parsable_certificates(certificates.flatten());
    (!roots.is_empty()).then_some(roots)
}
