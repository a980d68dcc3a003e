//! `Exec`: prepares a command, and runs it when the client connects to the streaming server.

use std::time::Duration;

use cri_proto::runtime::v1::{ContainerState, ExecRequest, ExecResponse};
use cri_streaming::{Exec, Exit, RequestedStreams, Streams, TerminalSize};
use futures::FutureExt as _;
use tokio::sync::mpsc;

use super::{
    exec_process::{self, wait_for_exit},
    output::ProcessOutput,
    session::{self, SessionEnd},
    status::find,
    stop::wait_for_end,
};
use crate::{Error, Shim, Streaming, engine::NewExec, model::Container};

/// The engine creates the terminal shortly after it starts the command.
const RESIZE_PAUSE: Duration = Duration::from_millis(50);
const RESIZE_TRIES: usize = 20;

/// Returns the URL of a command's streams.
///
/// # Errors
/// `InvalidArgument`; `NotFound`; `FailedPrecondition` if the container is not running;
/// `ResourceExhausted` if too many URLs are unused.
pub async fn exec(
    shim: &Shim,
    streaming: &Streaming,
    request: ExecRequest,
) -> Result<ExecResponse, Error> {
    if request.cmd.is_empty() {
        return Err(Error::invalid("cmd", "must not be empty"));
    }
    let requested = RequestedStreams {
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
        tty: request.tty,
    };
    check(&request.container_id, requested)?;
    let container = find(shim, &request.container_id).await?;
    require_running(&container)?;
    let url = streaming.exec(Exec {
        container_id: container.id().to_owned(),
        command: request.cmd,
        requested,
    })?;
    Ok(ExecResponse { url })
}

/// Rejects what upstream's streaming server rejects, with the same messages.
pub(super) fn check(container_id: &str, requested: RequestedStreams) -> Result<(), Error> {
    if container_id.is_empty() {
        return Err(Error::invalid(
            "container_id",
            "missing required container_id",
        ));
    }
    if requested.tty && requested.stderr {
        let reason = "tty and stderr cannot both be true";
        return Err(Error::invalid("stderr", reason));
    }
    if !requested.stdin && !requested.stdout && !requested.stderr {
        let reason = "one of stdin, stdout, or stderr must be set";
        return Err(Error::invalid("stdout", reason));
    }
    Ok(())
}

/// # Errors
/// `FailedPrecondition` that names the container's state.
pub(super) fn require_running(container: &Container) -> Result<(), Error> {
    let state = container.status.state();
    if state == ContainerState::ContainerRunning {
        return Ok(());
    }
    Err(Error::FailedPrecondition(format!(
        "container {} is {}; it must be running",
        container.id(),
        state.as_str_name()
    )))
}

/// Runs a command on a client's streams.
///
/// # Errors
/// The container is no longer running, the engine failed, or the client disconnected.
pub async fn run(shim: &Shim, exec: Exec, streams: Streams) -> Result<Exit, Error> {
    let container = find(shim, &exec.container_id).await?;
    require_running(&container)?;
    let RequestedStreams {
        stdin,
        stdout,
        stderr,
        tty,
    } = exec.requested;
    let command = NewExec {
        command: exec.command,
        stdin,
        stdout,
        stderr,
        tty,
    };
    let id = shim.engine.create_exec(container.id(), command).await?;
    let (reader, writer) = shim.engine.start_exec(&id, tty).await?;
    let reader = ProcessOutput::new(reader, wait_for_end(shim, container.id()));
    let gone = streams.gone.clone();
    let mut streams = streams;
    let sizes = streams.resize.take();
    let started = exec_process::has_started(shim, &id).boxed();
    let carrying = session::carry(reader, writer, tty, streams, started);
    let ended = tokio::select! {
        ended = carrying => ended,
        never = follow_sizes(shim, &id, sizes) => match never {},
    };
    let ended = match ended {
        SessionEnd::Output => tokio::select! {
            exited = wait_for_exit(shim, &id, container.id()) => {
                return Ok(Exit::Code(exited?.code));
            }
            () = gone.cancelled() => SessionEnd::ClientGone,
        },
        SessionEnd::NotStarted(reason) => {
            let code = wait_for_exit(shim, &id, container.id()).await?.code;
            return Ok(Exit::NotStarted { code, reason });
        }
        ended => ended,
    };
    exec_process::end(shim, &id, container.id(), tty).await;
    Err(ended.into_error("command", &id))
}

/// Forwards the client's terminal sizes; never returns.
async fn follow_sizes(
    shim: &Shim,
    exec: &str,
    sizes: Option<mpsc::Receiver<TerminalSize>>,
) -> std::convert::Infallible {
    if let Some(mut sizes) = sizes {
        while let Some(TerminalSize { width, height }) = sizes.recv().await {
            for _ in 0..RESIZE_TRIES {
                match shim.engine.resize_exec(exec, width, height).await {
                    Ok(()) => break,
                    Err(error) => tracing::debug!(%error, "cannot resize the terminal; retrying"),
                }
                tokio::time::sleep(RESIZE_PAUSE).await;
            }
        }
    }
    std::future::pending().await
}
