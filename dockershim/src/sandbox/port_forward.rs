//! `PortForward`: prepares port forwarding to a sandbox, and forwards each connection.

use cri_proto::runtime::v1::{PodSandboxState, PortForwardRequest, PortForwardResponse};
use cri_streaming::Connection;

use crate::{Error, Shim, Streaming, model::Sandbox, network::port_forward};

/// Returns the URL for port forwarding to the sandbox.
///
/// # Errors
/// `InvalidArgument`; `NotFound`; `FailedPrecondition` if the sandbox is not ready;
/// `ResourceExhausted` if too many URLs are unused.
pub async fn port_forward(
    shim: &Shim,
    streaming: &Streaming,
    request: PortForwardRequest,
) -> Result<PortForwardResponse, Error> {
    if request.pod_sandbox_id.is_empty() {
        let reason = "missing required pod_sandbox_id";
        return Err(Error::invalid("pod_sandbox_id", reason));
    }
    let mut ports = Vec::new();
    for (index, port) in request.port.into_iter().enumerate() {
        match u16::try_from(port) {
            Ok(port) if port > 0 => ports.push(port),
            _ => {
                let reason = format!("{port}; allowed: 1 to 65535");
                return Err(Error::invalid(format!("port[{index}]"), reason));
            }
        }
    }
    let sandbox = shim.find_sandbox(&request.pod_sandbox_id).await?;
    require_ready(&sandbox)?;
    let url = streaming.port_forward(sandbox.id().to_owned(), ports)?;
    Ok(PortForwardResponse { url })
}

fn require_ready(sandbox: &Sandbox) -> Result<(), Error> {
    if sandbox.status.state() == PodSandboxState::SandboxReady {
        return Ok(());
    }
    Err(Error::FailedPrecondition(format!(
        "sandbox {} is not ready; it must be ready to forward ports",
        sandbox.id()
    )))
}

/// Forwards a connection to a port on the sandbox's loopback interface until both directions have
/// ended.
///
/// # Errors
/// The sandbox is no longer ready, nothing listens on the port, or the connection failed.
pub async fn run(
    shim: &Shim,
    sandbox_id: &str,
    port: u16,
    connection: Connection,
) -> Result<(), Error> {
    let sandbox = shim.find_sandbox(sandbox_id).await?;
    require_ready(&sandbox)?;
    let socket = port_forward::connect(&shim.processes, sandbox.id(), sandbox.pid, port).await?;
    port_forward::carry(socket, connection)
        .await
        .map_err(|source| Error::Forward { port, source })
}
