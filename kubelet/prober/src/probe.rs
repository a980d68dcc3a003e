//! One run of a probe of any kind.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};
use kubelet_cri_client::{CriClient, CriError};

use super::{
    exec, grpc,
    http::{self, HttpError, HttpGet, RequestError},
    outcome::Outcome,
    port::{self, PortError},
    tcp,
};

/// Attempts while a probe is inconclusive.
const TRIES: u32 = 3;

/// Why a probe is inconclusive.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The runtime did not run the command.
    #[error("{}", .0.go_text())]
    Exec(#[from] CriError),
    /// The HTTP request cannot be built.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The HTTP response was cut off.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The port cannot be determined.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The probe has no action.
    #[error("missing probe handler for container {0:?}")]
    NoHandler(String),
}

/// The container to probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// The runtime of the container.
    pub(super) cri: &'a CriClient,
    /// The container's spec.
    pub(super) container: &'a Container,
    /// Its ID in the runtime.
    pub(super) container_id: &'a str,
    /// The IP address of the pod.
    pub(super) ip: &'a str,
}

/// Runs a probe, and repeats it while it is inconclusive.
///
/// # Errors
/// Every attempt was inconclusive; see [`ProbeError`].
pub(super) async fn probe(target: Target<'_>, probe: &Probe) -> Result<Outcome, ProbeError> {
    let mut tries = 1;
    loop {
        match run(target, probe).await {
            Err(_) if tries < TRIES => tries += 1,
            result => return result,
        }
    }
}

async fn run(target: Target<'_>, probe: &Probe) -> Result<Outcome, ProbeError> {
    let Target {
        cri,
        container,
        container_id,
        ip,
    } = target;
    let timeout = timeout(probe);
    if let Some(action) = &probe.exec {
        let env = container.env.as_deref().unwrap_or_default();
        return match exec::command(action.command.as_deref().unwrap_or_default(), env) {
            Ok(command) => Ok(exec::probe(cri, container_id, command, timeout).await?),
            Err(error) => Ok(Outcome::Failure(format!("exec.command: {error}"))),
        };
    }
    if let Some(action) = &probe.http_get {
        return match HttpGet::new(action, Some(container), ip, "probe") {
            Ok(request) => Ok(http::probe(&request, timeout).await?),
            Err(error @ RequestError::Header(_)) => Ok(Outcome::Failure(error.to_string())),
            Err(error) => Err(error.into()),
        };
    }
    if let Some(action) = &probe.tcp_socket {
        let port = port::resolve(&action.port, Some(container))?;
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        return Ok(tcp::probe(host.unwrap_or(ip), port, timeout).await);
    }
    if let Some(action) = &probe.grpc {
        let port =
            u16::try_from(action.port).map_err(|_| PortError::OutOfRange(action.port.into()))?;
        let service = action.service.as_deref().unwrap_or_default();
        return Ok(grpc::probe(ip, port, service, timeout).await);
    }
    Err(ProbeError::NoHandler(container.name.clone()))
}

/// Upstream's default applies if the spec sets none.
fn timeout(probe: &Probe) -> Duration {
    Duration::from_secs(positive(probe.timeout_seconds).unwrap_or(1).into())
}

/// The value, if it is positive.
pub(super) fn positive(number: Option<i32>) -> Option<u32> {
    number
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| *number > 0)
}
