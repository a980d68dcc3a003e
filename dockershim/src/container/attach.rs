//! `Attach`: connects a client to the streams of a running container.

use cri_proto::runtime::v1::{AttachRequest, AttachResponse};
use cri_streaming::{Attach, RequestedStreams, Streams, TerminalSize};
use futures::{FutureExt as _, future::ready};

use super::{
    exec::{check, require_running},
    output::ProcessOutput,
    session::{self, SessionEnd},
    status::find,
    stop::wait_for_end,
};
use crate::{Error, Shim, Streaming, engine::AttachTo};

/// Returns the URL of the container's streams.
///
/// # Errors
/// `InvalidArgument`; `NotFound`; `FailedPrecondition` if the container is not running;
/// `ResourceExhausted` if too many URLs are unused.
pub async fn attach(
    shim: &Shim,
    streaming: &Streaming,
    request: AttachRequest,
) -> Result<AttachResponse, Error> {
    let requested = RequestedStreams {
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
        tty: request.tty,
    };
    check(&request.container_id, requested)?;
    let container = find(shim, &request.container_id).await?;
    require_running(&container)?;
    let url = streaming.attach(Attach {
        container_id: container.id().to_owned(),
        requested,
    })?;
    Ok(AttachResponse { url })
}

/// Connects a client's streams to the container's until the container exits or the client
/// disconnects, which does not affect the container.
///
/// # Errors
/// The container is no longer running, or the engine failed.
pub async fn run(shim: &Shim, attach: Attach, mut streams: Streams) -> Result<(), Error> {
    let container = find(shim, &attach.container_id).await?;
    require_running(&container)?;
    let id = container.id();
    let config = shim.engine.inspect_container(id).await?.config;
    let config = config.unwrap_or_default();
    // The container's configuration decides how the output is framed, whatever the client
    // requested.
    let tty = config.tty.unwrap_or_default();
    let to = AttachTo {
        stdin: attach.requested.stdin && config.open_stdin.unwrap_or_default(),
        stdout: attach.requested.stdout,
        stderr: attach.requested.stderr && !tty,
    };
    if !to.stdin {
        streams.stdin = None;
    }
    let (reader, writer) = shim.engine.attach_container(id, to).await?;
    let reader = ProcessOutput::new(reader, wait_for_end(shim, id));
    let sizes = streams.resize.take();
    let resizing = async {
        if let Some(mut sizes) = sizes {
            while let Some(TerminalSize { width, height }) = sizes.recv().await {
                if let Err(error) = shim.engine.resize_container(id, width, height).await {
                    tracing::debug!(container_id = id, %error, "cannot resize the terminal");
                }
            }
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    let ended = tokio::select! {
        ended = session::carry(reader, writer, tty, streams, ready(true).boxed()) => ended,
        never = resizing => match never {},
    };
    match ended {
        // The engine closes the stream when the container exits, when the client's input ends, or
        // when the engine itself stops; in the last case, this request fails.
        SessionEnd::Output => match shim.engine.inspect_container(id).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        },
        SessionEnd::NotStarted(_) | SessionEnd::ClientGone => Ok(()),
        broken @ SessionEnd::Engine(_) => Err(broken.into_error("container", id)),
    }
}
