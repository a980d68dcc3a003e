//! `Attach`: joins a client to the streams of a running container.

use cri_proto::runtime::v1::{AttachRequest, AttachResponse};
use cri_streaming::{Attach, Streams, TerminalSize, Wants};
use futures::{FutureExt as _, future::ready};

use super::{
    exec::{check, require_running},
    output::Output,
    session::{self, Ended},
    status::find,
    stop::wait_for_end,
};
use crate::{Error, Shim, Streaming, engine::AttachTo};

/// Returns the URL at which a client gets the container's streams.
///
/// # Errors
/// `InvalidArgument`; `NotFound`; `FailedPrecondition` when the container does not run;
/// `ResourceExhausted` when too many URLs were not used.
pub async fn attach(
    shim: &Shim,
    streaming: &Streaming,
    request: AttachRequest,
) -> Result<AttachResponse, Error> {
    let wants = Wants {
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr,
        tty: request.tty,
    };
    check(&request.container_id, wants)?;
    let container = find(shim, &request.container_id).await?;
    require_running(&container)?;
    let url = streaming.attach(Attach {
        container_id: container.id().to_owned(),
        wants,
    })?;
    Ok(AttachResponse { url })
}

/// Joins a client's streams to the container's until the container ends or the client
/// leaves, which the container does not notice.
///
/// # Errors
/// The container does not run any more, or the engine failed.
pub async fn run(shim: &Shim, attach: Attach, mut streams: Streams) -> Result<(), Error> {
    let container = find(shim, &attach.container_id).await?;
    require_running(&container)?;
    let id = container.id();
    let config = shim.engine.inspect_container(id).await?.config;
    let config = config.unwrap_or_default();
    // How output comes is the container's own way, whatever the client believes.
    let tty = config.tty.unwrap_or_default();
    let to = AttachTo {
        stdin: attach.wants.stdin && config.open_stdin.unwrap_or_default(),
        stdout: attach.wants.stdout,
        stderr: attach.wants.stderr && !tty,
    };
    if !to.stdin {
        streams.stdin = None;
    }
    let (reader, writer) = shim.engine.attach_container(id, to).await?;
    let reader = Output::new(reader, wait_for_end(shim, id));
    let sizes = streams.resize.take();
    let resizing = async {
        if let Some(mut sizes) = sizes {
            while let Some(TerminalSize { width, height }) = sizes.recv().await {
                if let Err(error) = shim.engine.resize_container(id, width, height).await {
                    tracing::debug!(container_id = id, %error, "a terminal keeps its size");
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
        // The engine ends it with the container or with the client's input, and also when it
        // ends itself, which is seen by its not answering.
        Ended::Output => match shim.engine.inspect_container(id).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        },
        Ended::NotStarted(_) | Ended::ClientGone => Ok(()),
        broken @ Ended::Engine(_) => Err(broken.into_error("container", id)),
    }
}
