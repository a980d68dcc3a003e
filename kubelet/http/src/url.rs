//! URLs: built from the fields of a spec, and resolved through redirects (RFC 3986, section
//! 5.2).

use std::{fmt, fmt::Write as _};

use hyper::Uri;

/// An `http` or `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    https: bool,
    host: String,
    /// The port as written; `None` for the default of the scheme.
    port: Option<u16>,
    /// Path and query; begins with `/`.
    target: String,
}

/// Why a redirect cannot be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// The scheme is neither `http` nor `https`.
    #[error("unsupported protocol scheme {0:?}")]
    Scheme(String),
    /// The host is missing, or the port is invalid.
    #[error("failed to parse Location header {0:?}")]
    Malformed(String),
}

impl Url {
    /// Builds a URL from a host, a port and `path`, which may contain a query. Characters that
    /// are not allowed in a URL are escaped; a scheme and host in `path` are ignored.
    pub fn new(https: bool, host: &str, port: u16, path: &str) -> Self {
        Self {
            https,
            host: host.to_owned(),
            port: Some(port),
            target: target(path),
        }
    }

    /// Parses an absolute `http` or `https` URL; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = split_scheme(without_fragment(text))?;
        let (authority, path) = split_authority(rest.strip_prefix("//")?);
        let (host, port) = parse_authority(authority)?;
        Some(Self {
            https: is_https(scheme)?,
            host,
            port,
            target: rooted(&escape(path, |_| false)),
        })
    }

    /// Whether the connection is encrypted.
    pub fn is_https(&self) -> bool {
        self.https
    }

    /// Whether the host equals that of `other` or is a subdomain of it; Go's client forwards
    /// credentials in that case.
    pub fn is_within(&self, other: &Self) -> bool {
        let (own, other) = (&*self.host, &*other.host);
        let is_address = own.contains(':');
        let below = own.len().checked_sub(other.len()).filter(|_| !is_address);
        own.eq_ignore_ascii_case(other)
            || below
                .and_then(|below| own.split_at_checked(below))
                .is_some_and(|(subdomain, parent)| {
                    subdomain.ends_with('.') && parent.eq_ignore_ascii_case(other)
                })
    }

    /// The same URL with the scheme `http`.
    pub fn without_tls(&self) -> Self {
        Self {
            https: false,
            ..self.clone()
        }
    }

    /// Host name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(if self.https { 443 } else { 80 })
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// Host and port in the form of a `Host` header.
    pub fn authority(&self) -> String {
        let mut authority = if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        if let Some(port) = self.port {
            // Writing to a string never fails.
            let _ = write!(authority, ":{port}");
        }
        authority
    }

    /// The same URL without path and query; `None` if the host is not valid in a URI.
    pub(crate) fn server(&self) -> Option<Uri> {
        Uri::builder()
            .scheme(if self.https { "https" } else { "http" })
            .authority(self.authority())
            .path_and_query("/")
            .build()
            .ok()
    }

    /// Resolves the `Location` header of a response from this URL.
    ///
    /// # Errors
    /// See [`LocationError`].
    pub fn join(&self, location: &str) -> Result<Self, LocationError> {
        let malformed = || LocationError::Malformed(location.to_owned());
        let reference = without_fragment(location);
        let (https, reference) = match split_scheme(reference) {
            Some((scheme, rest)) => {
                let unknown = || LocationError::Scheme(scheme.to_owned());
                (is_https(scheme).ok_or_else(unknown)?, rest)
            }
            None => (self.https, reference),
        };
        if let Some(rest) = reference.strip_prefix("//") {
            let (authority, path) = split_authority(rest);
            let (host, port) = parse_authority(authority).ok_or_else(malformed)?;
            return Ok(Self {
                https,
                host,
                port,
                target: normal(path),
            });
        }
        if is_absolute(location) {
            return Err(malformed());
        }
        let base = self.target.split('?').next().unwrap_or_default();
        let path = match reference.chars().next() {
            None => self.target.clone(),
            Some('?') => format!("{base}{reference}"),
            Some('/') => reference.to_owned(),
            Some(_) => {
                let parent = base.rfind('/').map_or("", |end| &base[..end]);
                format!("{parent}/{reference}")
            }
        };
        Ok(Self {
            target: normal(&path),
            ..self.clone()
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.target)
    }
}

/// Whether a reference has a scheme.
pub fn is_absolute(reference: &str) -> bool {
    split_scheme(reference).is_some()
}

fn is_https(scheme: &str) -> Option<bool> {
    match scheme.to_ascii_lowercase().as_str() {
        "http" => Some(false),
        "https" => Some(true),
        _ => None,
    }
}

fn without_fragment(text: &str) -> &str {
    text.split('#').next().unwrap_or_default()
}

fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let mut bytes = scheme.bytes();
    let valid = bytes.next()?.is_ascii_alphabetic()
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    valid.then_some((scheme, rest))
}

/// Splits the text after `//` into authority and the rest.
fn split_authority(text: &str) -> (&str, &str) {
    let end = text.find(['/', '?']).unwrap_or(text.len());
    text.split_at(end)
}

fn parse_authority(authority: &str) -> Option<(String, Option<u16>)> {
    // User information is dropped: a redirect must not choose credentials.
    let place = authority.rsplit('@').next()?;
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => place.split_at(place.find(':').unwrap_or(place.len())),
    };
    let port = match port.strip_prefix(':') {
        None | Some("") => None,
        Some(port) => Some(port.parse().ok()?),
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// Path and query from the `path` of an `httpGet` action.
fn target(text: &str) -> String {
    if !has_valid_escapes(without_fragment(text).split('?').next().unwrap_or_default()) {
        // As upstream: text that does not parse as a URL is taken as a path.
        return rooted(&escape(text, |byte| b"%?#".contains(&byte)));
    }
    let text = without_fragment(text);
    let after_scheme = split_scheme(text).map_or(text, |(_, rest)| rest);
    let path = match after_scheme.strip_prefix("//") {
        Some(rest) => split_authority(rest).1,
        None => text,
    };
    rooted(&escape(path, |_| false))
}

fn rooted(target: &str) -> String {
    if target.starts_with('/') {
        target.to_owned()
    } else {
        format!("/{target}")
    }
}

/// Removes `.` and `..` segments from the path.
fn normal(target: &str) -> String {
    let (path, query) = match target.find('?') {
        Some(at) => target.split_at(at),
        None => (target, ""),
    };
    let mut segments: Vec<&str> = Vec::new();
    let mut steps = path.split('/').skip(usize::from(path.starts_with('/')));
    let mut next = steps.next();
    while let Some(segment) = next {
        next = steps.next();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    segments.pop();
                }
                // Keeps the trailing slash.
                if next.is_none() {
                    segments.push("");
                }
            }
            other => segments.push(other),
        }
    }
    rooted(&escape(&format!("/{}{query}", segments.join("/")), |_| {
        false
    }))
}

fn has_valid_escapes(text: &str) -> bool {
    text.bytes().all(|byte| !byte.is_ascii_control())
        && text.split('%').skip(1).all(|rest| {
            let digits = rest.as_bytes().get(..2);
            digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
        })
}

/// Escapes characters that are not allowed in a URL, and those in `also`.
fn escape(text: &str, also: impl Fn(u8) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte) && !also(byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string never fails.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_urls() {
        for (path, url) in [
            ("/healthz", "http://10.0.0.1:80/healthz"),
            ("healthz", "http://10.0.0.1:80/healthz"),
            ("", "http://10.0.0.1:80/"),
            ("/a?b=c&d", "http://10.0.0.1:80/a?b=c&d"),
            ("/a#b", "http://10.0.0.1:80/a"),
            ("/a b?c d", "http://10.0.0.1:80/a%20b?c%20d"),
            ("/%20", "http://10.0.0.1:80/%20"),
            ("/50%?x", "http://10.0.0.1:80/50%25%3Fx"),
            ("/a:b", "http://10.0.0.1:80/a:b"),
            ("http://other:8080/x?y", "http://10.0.0.1:80/x?y"),
            ("//other/x", "http://10.0.0.1:80/x"),
        ] {
            assert_eq!(Url::new(false, "10.0.0.1", 80, path).to_string(), url);
        }
        assert_eq!(
            Url::new(true, "fd00::1", 8443, "/").to_string(),
            "https://[fd00::1]:8443/"
        );
    }

    #[test]
    fn whole_urls_are_read() {
        for (text, url) in [
            ("http://host", "http://host/"),
            ("HTTPS://u:p@[fd00::1]:81?x", "https://[fd00::1]:81/?x"),
            ("http://host:8080/a/../b?c#d", "http://host:8080/a/../b?c"),
        ] {
            let parsed = Url::parse(text).map(|url| url.to_string());
            assert_eq!(parsed.as_deref(), Some(url), "{text}");
        }
        for text in ["", "/x", "host/x", "ftp://host/", "http:x", "http://h:x/"] {
            assert_eq!(Url::parse(text), None, "{text}");
        }
    }

    #[test]
    fn subdomains_are_within_a_host_and_nothing_else_is() {
        let url = |host: &str| Url::new(false, host, 80, "/");
        for (host, other, expected) in [
            ("example.com", "example.com", true),
            ("Example.com", "example.COM", true),
            ("a.b.example.com", "example.com", true),
            ("example.com", "a.example.com", false),
            ("badexample.com", "example.com", false),
            ("example.com.evil.org", "example.com", false),
            ("1.2.3.4", "2.3.4", true),
            ("fd00::1", "fd00::1", true),
            ("fd00::1", "::1", false),
            ("é.example.com", "example.com", true),
            ("é", "x", false),
        ] {
            assert_eq!(url(host).is_within(&url(other)), expected, "{host} {other}");
        }
    }

    #[test]
    fn locations_lead_on() {
        let base = Url::new(false, "host", 8080, "/a/b?c");
        for (location, url) in [
            ("/x", "http://host:8080/x"),
            ("x?y", "http://host:8080/a/x?y"),
            ("../x", "http://host:8080/x"),
            ("./", "http://host:8080/a/"),
            ("..", "http://host:8080/"),
            ("?z", "http://host:8080/a/b?z"),
            ("", "http://host:8080/a/b?c"),
            ("//host/x", "http://host/x"),
            ("https://host/x#y", "https://host/x"),
            ("http://u:p@[fd00::1]:81?x", "http://[fd00::1]:81/?x"),
        ] {
            let joined = base.join(location).map(|url| url.to_string());
            assert_eq!(joined.as_deref(), Ok(url), "{location}");
        }
        assert_eq!(base.join("https://host/").map(|url| url.port()), Ok(443));
        assert_eq!(
            base.join("ftp://host/"),
            Err(LocationError::Scheme("ftp".to_owned()))
        );
        for location in ["http://", "http://h:99999/", "http:x"] {
            assert!(base.join(location).is_err(), "{location}");
        }
    }
}
