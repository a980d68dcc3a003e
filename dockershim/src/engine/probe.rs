//! The first contact with an engine, which determines its API version and its process. It bypasses
//! bollard, which puts a version into every path: an engine refuses versions outside its range, so
//! the range could not be queried.

use bytes::Bytes;
use http_body_util::Empty;
use hyper::StatusCode;
use rustix::process::Pid;

use super::{
    dial::{DialError, Dialer, TLS_HINT},
    endpoint::Endpoint,
};

/// The oldest supported API version (Docker 20.10).
pub const OLDEST_API: (usize, usize) = (1, 41);

/// The result of the first contact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The newest API version that the engine serves: major, minor.
    pub api: (usize, usize),
    /// The peer process, if the transport reports it and it is visible in this pid namespace. With
    /// socket activation, the kernel reports the process that created the socket (systemd), not the
    /// one that serves it.
    pub peer: Option<Pid>,
}

/// Why the first contact failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The engine did not answer.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The response has no usable `Api-Version` header.
    #[error("{endpoint} does not answer like a Docker engine: {reason}")]
    NoVersion {
        /// The engine's address.
        endpoint: String,
        /// What the response had instead.
        reason: String,
    },
    /// The engine is older than [`OLDEST_API`].
    #[error(
        "{endpoint} serves API {}.{}, but {}.{} or newer is required",
        api.0, api.1, OLDEST_API.0, OLDEST_API.1
    )]
    TooOld {
        /// The engine's address.
        endpoint: String,
        /// The engine's API version.
        api: (usize, usize),
    },
}

/// Pings the engine at `endpoint`.
///
/// # Errors
/// See [`ProbeError`].
pub async fn probe(endpoint: &Endpoint) -> Result<Probe, ProbeError> {
    probe_by(&Dialer::new(endpoint).await?, endpoint).await
}

pub(super) async fn probe_by(dialer: &Dialer, endpoint: &Endpoint) -> Result<Probe, ProbeError> {
    let no_version = |reason: String| ProbeError::NoVersion {
        endpoint: endpoint.to_string(),
        reason,
    };
    let request = hyper::Request::get("/_ping")
        .body(Empty::<Bytes>::new())
        .map_err(|error| no_version(error.to_string()))?;
    let dialled = dialer.dial().await?;
    let peer = dialled.peer;
    let response = dialer.send_over(dialled, request).await?;
    let header = response.headers().get("api-version").ok_or_else(|| {
        let status = response.status();
        // Go's TLS server answers plain HTTP with this status.
        let hint = match endpoint {
            Endpoint::Tcp(_) if status == StatusCode::BAD_REQUEST => TLS_HINT,
            _ => "",
        };
        no_version(format!("HTTP {status} without Api-Version{hint}"))
    })?;
    let api = header
        .to_str()
        .ok()
        .and_then(parse_version)
        .ok_or_else(|| no_version(format!("Api-Version {header:?}")))?;
    if api < OLDEST_API {
        return Err(ProbeError::TooOld {
            endpoint: endpoint.to_string(),
            api,
        });
    }
    Ok(Probe { api, peer })
}

fn parse_version(text: &str) -> Option<(usize, usize)> {
    let (major, minor) = text.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse_version("1.41"), Some((1, 41)));
        assert_eq!(parse_version("1.x"), None);
        assert_eq!(parse_version(""), None);
    }
}
