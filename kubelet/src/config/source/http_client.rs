//! A GET of a small document over HTTP or HTTPS.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Request, Response, StatusCode, Uri,
    body::Incoming,
    client::conn::http1,
    header::{HOST, HeaderValue, LOCATION},
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        self, ClientConfig, RootCertStore,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

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
    tls: Option<TlsConnector>,
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
        let mut uri: Uri = url.parse().map_err(|_| no_url(url))?;
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(&uri).await?;
            let location = response.headers().get(LOCATION).cloned();
            match (response.status(), location) {
                (StatusCode::OK, _) => return read(response.into_body()).await,
                (status, Some(location)) if is_redirect(status) => {
                    uri = redirected(&uri, &location)
                        .ok_or_else(|| no_url(&String::from_utf8_lossy(location.as_bytes())))?;
                }
                (status, _) => return Err(FetchError::Status(status)),
            }
        }
        Err(FetchError::Redirects)
    }

    async fn request(&mut self, uri: &Uri) -> Result<Response<Incoming>, FetchError> {
        let no_url = || FetchError::Url(uri.to_string());
        let (Some(host), Some(authority)) = (uri.host(), uri.authority()) else {
            return Err(no_url());
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(no_url()),
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let connected = TcpStream::connect((host, port)).await;
        let stream = connected.map_err(|source| connect_error(host, port, source))?;
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let mut request = Request::get(path).body(Empty::<Bytes>::new())?;
        request.headers_mut().clone_from(&self.headers);
        let address = authority.as_str().rsplit('@').next().unwrap_or_default();
        let address = HeaderValue::from_str(address).map_err(hyper::http::Error::from)?;
        request.headers_mut().insert(HOST, address);
        if !is_tls {
            return send(stream, request).await;
        }
        let name = ServerName::try_from(host.to_owned()).map_err(|_| no_url())?;
        let tls = match &self.tls {
            Some(tls) => tls,
            None => self.tls.insert(connector().await?),
        };
        let stream = tls.connect(name, stream).await;
        send(
            stream.map_err(|source| connect_error(host, port, source))?,
            request,
        )
        .await
    }
}

fn connect_error(host: &str, port: u16, source: io::Error) -> FetchError {
    FetchError::Connect {
        address: format!("{host}:{port}"),
        source,
    }
}

async fn send<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, FetchError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the answer; what fails in it fails the request too.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender.send_request(request).await?)
}

async fn read(body: Incoming) -> Result<Bytes, FetchError> {
    match Limited::new(body, MAX_LENGTH).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLong),
        Err(error) => Err(FetchError::Body(error)),
    }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// A whole URL, or a path on the same host.
fn redirected(from: &Uri, location: &HeaderValue) -> Option<Uri> {
    let location = location.to_str().ok()?;
    if !location.starts_with('/') {
        return location.parse().ok();
    }
    let mut parts = from.clone().into_parts();
    parts.path_and_query = Some(location.parse().ok()?);
    Uri::from_parts(parts).ok()
}

async fn connector() -> Result<TlsConnector, FetchError> {
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
    Ok(TlsConnector::from(Arc::new(config)))
}

/// The roots in a file; none when there are none that can be read.
fn roots(path: &Path) -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path).ok()?;
    // Bundles have a few that no library takes.
    roots.add_parsable_certificates(certificates.flatten());
    (!roots.is_empty()).then_some(roots)
}
