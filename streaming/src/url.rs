//! The URLs of streaming servers.

use std::os::unix::fs::FileTypeExt as _;

use hyper::{Uri, http::uri::PathAndQuery};

/// The prefix of a unix socket's path.
const UNIX: &str = "unix://";

/// The reason why a URL does not name a streaming server.
#[derive(Debug, thiserror::Error)]
pub enum UrlError {
    /// The URL cannot be parsed.
    #[error("is not a URL")]
    Malformed,
    /// The URL has the `unix` scheme, but no part of its path is a socket.
    #[error("has no unix socket of this machine in its path")]
    NoSocket,
}

/// Parses the URL of a streaming server. Supported are `http://` and `https://` with host and port,
/// `unix://` with the socket's path followed by the request's path (the socket is the first prefix
/// that is one), and URLs without a host, such as `/exec/token`.
///
/// A unix socket is returned in the form of [`hyperlocal::Uri`], which is also accepted as input.
///
/// # Errors
/// [`UrlError`].
pub async fn parse_url(url: &str) -> Result<Uri, UrlError> {
    let Some(path) = url.strip_prefix(UNIX).filter(|path| path.starts_with('/')) else {
        return url.parse().map_err(|_| UrlError::Malformed);
    };
    let slashes = path.match_indices('/').map(|(at, _)| at);
    for end in slashes.skip(1).chain([path.len()]) {
        let (socket, rest) = path.split_at(end);
        match tokio::fs::metadata(socket).await {
            Ok(found) if found.file_type().is_socket() => {
                let rest = if rest.is_empty() { "/" } else { rest };
                let rest: PathAndQuery = rest.parse().map_err(|_| UrlError::Malformed)?;
                let mut parts = Uri::from(hyperlocal::Uri::new(socket, "/")).into_parts();
                parts.path_and_query = Some(rest);
                return Uri::from_parts(parts).map_err(|_| UrlError::Malformed);
            }
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Err(UrlError::NoSocket)
}

/// Returns the path of the unix socket in a [`hyperlocal::Uri`].
pub(crate) fn socket_of(uri: &Uri) -> Option<String> {
    let host = uri.host().filter(|_| uri.scheme_str() == Some("unix"))?;
    let byte = |at| u8::from_str_radix(host.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..host.len()).step_by(2).map(byte).collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_unix_socket_is_found_in_front_of_a_path() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a.sock");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let socket = socket.to_str().unwrap();
        let uri = parse_url(&format!("unix://{socket}/exec/token?x=/y"))
            .await
            .unwrap();
        assert_eq!(uri.path_and_query().unwrap(), "/exec/token?x=/y");
        assert_eq!(socket_of(&uri).unwrap(), socket);
        assert_eq!(parse_url(&uri.to_string()).await.unwrap(), uri, "as it is");
        let alone = parse_url(&format!("unix://{socket}")).await.unwrap();
        assert_eq!(alone.path(), "/");

        let none = format!("unix://{}/b.sock/exec", directory.path().display());
        let error = parse_url(&none).await.unwrap_err();
        assert!(matches!(error, UrlError::NoSocket), "{error}");
        let error = parse_url(&format!("unix://{socket}/a b"))
            .await
            .unwrap_err();
        assert!(matches!(error, UrlError::Malformed), "{error}");
    }

    #[tokio::test]
    async fn urls_of_tcp_are_as_they_are() {
        for url in ["https://[::1]:7/exec/token", "http://a/b", "/exec/token"] {
            assert_eq!(parse_url(url).await.unwrap(), url);
        }
        parse_url("http://[").await.unwrap_err();
    }
}
