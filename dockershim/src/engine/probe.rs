//! The first contact with an engine: which API version it speaks, and which process
//! it is. Made without bollard, whose every path carries a version, and an engine
//! refuses a version outside its own range before it can be asked for that range.

use bytes::Bytes;
use http_body_util::Empty;
use hyper::StatusCode;
use rustix::process::Pid;

use super::{
    dial::{DialError, Dialer, TLS_HINT},
    endpoint::Endpoint,
};

/// The oldest API that this shim works with (Docker 20.10).
pub const OLDEST_API: (usize, usize) = (1, 41);

/// What the first contact tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The newest API version that the engine serves: major, minor.
    pub api: (usize, usize),
    /// The process behind the socket, where the transport tells and it is visible from here.
    /// Under socket activation the kernel tells the process that made the socket (systemd),
    /// not the one that serves it.
    pub peer: Option<Pid>,
}

/// Why the first contact failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No answer.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The answer has no usable `Api-Version`.
    #[error("{endpoint} does not answer like a Docker engine: {reason}")]
    NoVersion {
        /// The engine's address.
        endpoint: String,
        /// What came instead.
        reason: String,
    },
    /// Older than [`OLDEST_API`].
    #[error("{endpoint} serves API {}.{}, but {}.{} or newer is needed", api.0, api.1, OLDEST_API.0, OLDEST_API.1)]
    TooOld {
        /// The engine's address.
        endpoint: String,
        /// What it serves.
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
        // Go's answer to plain HTTP where it serves TLS.
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
