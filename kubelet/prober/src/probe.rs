//! One run of a probe, whatever it does.

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

/// How often a probe that says nothing is tried.
const TRIES: u32 = 3;

/// Why a probe says nothing of its container.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// The runtime did not run the command.
    #[error(transparent)]
    Exec(#[from] CriError),
    /// There is no request to send.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The answer broke off.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// There is no port to connect to.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The probe does nothing.
    #[error("missing probe handler for container {0:?}")]
    NoHandler(String),
}

/// What is probed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target<'a> {
    /// The runtime that the container is in.
    pub(super) cri: &'a CriClient,
    /// Its spec.
    pub(super) container: &'a Container,
    /// Its id in the runtime.
    pub(super) container_id: &'a str,
    /// The pod's address.
    pub(super) ip: &'a str,
}

/// Runs a probe, again where it says nothing.
///
/// # Errors
/// It said nothing each time; see [`ProbeError`].
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
        let command = exec::command(action.command.as_deref().unwrap_or_default(), env);
        return Ok(exec::probe(cri, container_id, command, timeout).await?);
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

/// Upstream's defaults hold where the spec names none.
fn timeout(probe: &Probe) -> Duration {
    Duration::from_secs(positive(probe.timeout_seconds).unwrap_or(1).into())
}

/// A number that counts only above 0.
pub(super) fn positive(number: Option<i32>) -> Option<u32> {
    number
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| *number > 0)
}
