//! Proxies of requests to other machines: those of the environment, chosen as Go's
//! `http.ProxyFromEnvironment` does, or a given one.

use std::{env, fmt, net::IpAddr, time::Duration};

use hyper::{Uri, header::HeaderValue, http::uri};
use hyper_util::client::{
    legacy::connect::{
        HttpConnector,
        proxy::{SocksV5, Tunnel},
    },
    proxy::matcher::{Intercept, Matcher},
};
use tokio::{net::TcpStream, time};
use tower::{BoxError, Service as _};

/// Time for the connection to the proxy and from there, as Go's client gives it.
const LIMIT: Duration = Duration::from_secs(60);
/// The port of a SOCKS proxy whose URL has none.
const SOCKS_PORT: u16 = 1080;

/// A variable that names no proxy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {source}")]
pub struct ProxyError {
    variable: &'static str,
    source: ProxyUrlError,
}

/// Why a URL names no proxy. The URL is not shown, because it may contain a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyUrlError {
    /// It is malformed.
    #[error("not the URL of a proxy, such as http://HOST:PORT or socks5://HOST:PORT")]
    Malformed,
    /// It has another scheme.
    #[error("proxies with the scheme {0} are not supported; use http or socks5")]
    Scheme(String),
}

/// Why there is no connection through a proxy.
#[derive(Debug, thiserror::Error)]
#[error("proxy {proxy}: {source}")]
pub struct TunnelError {
    /// The proxy, without its password.
    proxy: Uri,
    source: BoxError,
}

/// Which requests go through which proxy. The default is that none does.
#[derive(Clone, Default)]
pub struct Proxies {
    /// The proxy of `http` URLs, or empty.
    http: String,
    /// The proxy of `https` URLs, or empty.
    https: String,
    exceptions: Option<Exceptions>,
}

/// What is requested without the proxies of the environment: this machine, and `NO_PROXY`.
#[derive(Clone)]
struct Exceptions(String);

/// A proxy, and the credentials for it.
#[derive(Clone, Debug)]
pub struct Proxy(Intercept);

/// An HTTP proxy that is sent requests with whole URLs.
pub(crate) struct Forwarder<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    /// The value of `Proxy-Authorization`.
    pub(crate) authorization: Option<&'a HeaderValue>,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URLs may contain passwords.
        f.debug_struct("Proxies").finish_non_exhaustive()
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.uri().fmt(f)
    }
}

impl Proxies {
    /// The proxies that `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` name, or the same variables in
    /// lower case.
    ///
    /// # Errors
    /// See [`ProxyError`].
    pub fn of_environment() -> Result<Self, ProxyError> {
        Self::of_variables(|name| env::var(name).ok())
    }

    fn of_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ProxyError> {
        let first = |names: [&str; 2]| {
            let mut values = names.into_iter().filter_map(&variable);
            values.find(|value| !value.is_empty()).unwrap_or_default()
        };
        let proxies = Self {
            http: first(["HTTP_PROXY", "http_proxy"]),
            https: first(["HTTPS_PROXY", "https_proxy"]),
            exceptions: Some(Exceptions(first(["NO_PROXY", "no_proxy"]))),
        };
        for (variable, url) in [
            ("HTTP_PROXY", &proxies.http),
            ("HTTPS_PROXY", &proxies.https),
        ] {
            if !url.is_empty() {
                check(url).map_err(|source| ProxyError { variable, source })?;
            }
        }
        Ok(proxies)
    }

    /// One proxy for all requests.
    ///
    /// # Errors
    /// See [`ProxyUrlError`].
    pub fn always(url: &str) -> Result<Self, ProxyUrlError> {
        check(url)?;
        Ok(Self {
            http: url.to_owned(),
            https: url.to_owned(),
            exceptions: None,
        })
    }

    /// The proxy of requests to `url`.
    pub fn of(&self, url: &Uri) -> Option<Proxy> {
        if self.http.is_empty() && self.https.is_empty() {
            return None;
        }
        let exceptions = match &self.exceptions {
            Some(exceptions) => exceptions.among(url)?,
            None => String::new(),
        };
        let matcher = Matcher::builder()
            .http(&self.http)
            .https(&self.https)
            .no(exceptions)
            .build();
        matcher.intercept(url).map(Proxy)
    }

    /// Connects to the server of a URL, through its proxy if it has one.
    ///
    /// # Errors
    /// The server or the proxy cannot be reached, or the proxy refuses.
    pub async fn connect(&self, mut tcp: HttpConnector, url: Uri) -> Result<TcpStream, BoxError> {
        match self.of(&url) {
            Some(proxy) => Ok(proxy.tunnel(tcp, &url).await?),
            None => Ok(tcp.call(url).await?.into_inner()),
        }
    }
}

/// Checks the URL of a proxy.
fn check(url: &str) -> Result<(), ProxyUrlError> {
    // As in Go, a proxy without a scheme is an HTTP proxy.
    let parsed = if url.contains("://") {
        url.parse::<Uri>()
    } else {
        format!("http://{url}").parse()
    };
    let parsed = parsed.map_err(|_| ProxyUrlError::Malformed)?;
    match parsed.scheme_str() {
        Some("http" | "socks5" | "socks5h") => {}
        scheme => return Err(ProxyUrlError::Scheme(scheme.unwrap_or_default().to_owned())),
    }
    let authority = parsed
        .authority()
        .map_or("", |authority| authority.as_str());
    let server = authority.rsplit('@').next().unwrap_or_default();
    let host = parsed.host().unwrap_or_default();
    let has_port = server != host;
    if host.is_empty() || has_port != parsed.port_u16().is_some() {
        return Err(ProxyUrlError::Malformed);
    }
    let matcher = Matcher::builder().http(url).build();
    let any = matcher.intercept(&Uri::from_static("http://any"));
    any.map(|_| ()).ok_or(ProxyUrlError::Malformed)
}

impl Exceptions {
    /// The exceptions that count for the port of a URL, without the port; `None` if the host is this
    /// machine.
    fn among(&self, url: &Uri) -> Option<String> {
        let host = url.host()?.trim_matches(['[', ']']);
        let address = host.parse::<IpAddr>().ok();
        if host.eq_ignore_ascii_case("localhost") || address.is_some_and(|ip| ip.is_loopback()) {
            return None;
        }
        let port = port(url);
        let entries = self.0.split(',').map(str::trim);
        let entries = entries.filter_map(|entry| {
            let entry = without_port(entry, port)?;
            match entry.strip_prefix("*.").or(entry.strip_prefix('.')) {
                // Only what is below the domain.
                Some(domain) if domain.eq_ignore_ascii_case(host) => None,
                Some(domain) => Some(format!(".{domain}")),
                None => Some(entry.to_owned()),
            }
        });
        Some(entries.collect::<Vec<_>>().join(","))
    }
}

/// A host, address or network without its port; `None` if it has another one.
fn without_port(entry: &str, port: u16) -> Option<&str> {
    match entry.rsplit_once(':') {
        // An IPv6 address is in brackets if it has a port.
        Some((host, own)) if !host.contains(':') || host.ends_with(']') => {
            (own.parse() == Ok(port)).then(|| host.trim_matches(['[', ']']))
        }
        _ => Some(entry),
    }
}

fn port(url: &Uri) -> u16 {
    let default = if url.scheme() == Some(&uri::Scheme::HTTP) {
        80
    } else {
        443
    };
    url.port_u16().unwrap_or(default)
}

impl Proxy {
    /// Whether the proxy speaks SOCKS, not HTTP.
    fn is_socks(&self) -> bool {
        self.0.uri().scheme() != Some(&uri::Scheme::HTTP)
    }

    /// The proxy as one that is asked for `http` URLs instead of the server, unless it speaks SOCKS.
    pub(crate) fn forwarder(&self) -> Option<Forwarder<'_>> {
        (!self.is_socks()).then(|| Forwarder {
            host: self
                .0
                .uri()
                .host()
                .unwrap_or_default()
                .trim_matches(['[', ']']),
            port: port(self.0.uri()),
            authorization: self.0.basic_auth(),
        })
    }

    /// Connects to the server of a URL.
    async fn tunnel(self, tcp: HttpConnector, url: &Uri) -> Result<TcpStream, TunnelError> {
        let tunnel = time::timeout(LIMIT, self.handshake(tcp, url)).await;
        let tunnel = tunnel.unwrap_or_else(|_| Err(format!("no tunnel within {LIMIT:?}").into()));
        tunnel.map_err(|source| TunnelError {
            proxy: self.0.uri().clone(),
            source,
        })
    }

    async fn handshake(&self, tcp: HttpConnector, url: &Uri) -> Result<TcpStream, BoxError> {
        let proxy = self.0.uri().clone();
        let host = url.host().unwrap_or_default();
        let server = Uri::builder()
            .scheme("https")
            .authority(format!("{host}:{}", port(url)))
            .path_and_query("/")
            .build()?;
        if !self.is_socks() {
            let mut tunnel = Tunnel::new(proxy, tcp);
            if let Some(authorization) = self.0.basic_auth() {
                tunnel = tunnel.with_auth(authorization.clone());
            }
            return Ok(tunnel.call(server).await?.into_inner());
        }
        let proxy = match proxy.port() {
            Some(_) => proxy,
            None => {
                let authority = format!("{}:{SOCKS_PORT}", proxy.host().unwrap_or_default());
                let mut parts = proxy.into_parts();
                parts.authority = Some(authority.parse()?);
                Uri::from_parts(parts)?
            }
        };
        let mut tunnel = SocksV5::new(proxy, tcp);
        if let Some((user, password)) = self.0.raw_auth() {
            tunnel = tunnel.with_auth(user.to_owned(), password.to_owned());
        }
        Ok(tunnel.call(server).await?.into_inner())
    }
}

#[cfg(test)]
mod tests;
