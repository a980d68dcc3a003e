//! Connects a client's streams to the engine's stream.

use cri_streaming::{Reader, Streams, Writer};
use futures::future::BoxFuture;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, sink,
};

use crate::{
    Error,
    engine::{self, Cause, EngineError, OutputError},
};

/// The length limit, in bytes, for the engine's error message when a process did not start.
const LONGEST_REASON: u64 = 64 * 1024;

/// How a session ended.
#[derive(Debug)]
pub(super) enum SessionEnd {
    /// The process closed its output, and all of it was delivered.
    Output,
    /// The process did not start; the engine's error message.
    NotStarted(String),
    /// The client disconnected.
    ClientGone,
    /// The engine's connection broke.
    Engine(std::io::Error),
}

/// Copies input and output until the output ends or either side disconnects. The stream's content
/// is output only if the process has `started` when the first data arrives; otherwise it is the
/// engine's error message.
pub(super) async fn carry(
    from: impl AsyncBufRead + Unpin,
    to: impl AsyncWrite + Unpin,
    tty: bool,
    streams: Streams,
    started: BoxFuture<'_, bool>,
) -> SessionEnd {
    let Streams {
        stdin,
        stdout,
        stderr,
        gone,
        ..
    } = streams;
    let output = async {
        let (mut stdout, mut stderr) = (or_sink(stdout), or_sink(stderr));
        let mut from = from;
        let first = from.fill_buf().await.map_err(OutputError::Engine)?;
        let ended = if first.is_empty() || started.await {
            engine::carry(from, tty, &mut stdout, &mut stderr).await?;
            SessionEnd::Output
        } else {
            let reason = reason(from, tty).await;
            // With a terminal, users see only stdout.
            let (to, end) = if tty {
                (&mut stdout, "\r\n")
            } else {
                (&mut stderr, "\n")
            };
            let told = to.write_all(format!("{reason}{end}").as_bytes()).await;
            told.map_err(OutputError::Taker)?;
            SessionEnd::NotStarted(reason)
        };
        // The streams are shut down only on success, because a client takes their end for the end
        // of the command.
        let _ = stdout.shutdown().await;
        let _ = stderr.shutdown().await;
        Ok(ended)
    };
    let ended = tokio::select! {
        carried = output => match carried {
            Ok(ended) => ended,
            Err(OutputError::Taker(_)) => SessionEnd::ClientGone,
            Err(OutputError::Engine(error)) => SessionEnd::Engine(error),
        },
        never = input(stdin, to) => match never {},
        () = gone.cancelled() => SessionEnd::ClientGone,
    };
    // If the client disconnected, an engine error does not matter.
    match ended {
        SessionEnd::Engine(_) if gone.is_cancelled() => SessionEnd::ClientGone,
        ended => ended,
    }
}

/// Reads the engine's error message, which it sends in place of output.
async fn reason(from: impl AsyncBufRead + Unpin, tty: bool) -> String {
    let mut words = Vec::new();
    // A partial message is good enough.
    let _ = engine::carry(from.take(LONGEST_REASON), tty, &mut words, &mut sink()).await;
    String::from_utf8_lossy(&words).trim_end().to_owned()
}

fn or_sink(stream: Option<Writer>) -> Writer {
    stream.unwrap_or_else(|| Box::new(sink()))
}

/// Copies input until its end, and keeps the engine's connection open until dropped.
async fn input(stdin: Option<Reader>, mut to: impl AsyncWrite + Unpin) -> std::convert::Infallible {
    if let Some(mut stdin) = stdin {
        match tokio::io::copy_buf(&mut stdin, &mut to).await {
            Ok(_) => {
                let _ = to.shutdown().await;
            }
            // A process that no longer reads may still write.
            Err(error) => tracing::debug!(%error, "cannot forward stdin; dropping the rest of it"),
        }
    }
    std::future::pending().await
}

// === impl SessionEnd ===

impl SessionEnd {
    /// The error of a session that did not end with its output.
    pub(super) fn into_error(self, kind: &'static str, id: &str) -> Error {
        let cause = match self {
            Self::Output | Self::NotStarted(_) | Self::ClientGone => {
                return Error::FailedPrecondition(format!(
                    "the client of {kind} {id} disconnected"
                ));
            }
            Self::Engine(error) => Cause::Unreachable(error.to_string()),
        };
        Error::Engine(EngineError {
            action: "forward the streams of",
            object: format!("{kind} {id}"),
            cause,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, future::ready};
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn an_engine_that_breaks_off_within_a_piece_is_told_from_the_end_of_the_output() {
        let whole = b"\x01\0\0\0\0\0\0\x04text";
        for length in [whole.len(), whole.len() - 1, 5] {
            let streams = Streams {
                stdin: None,
                stdout: None,
                stderr: None,
                resize: None,
                gone: CancellationToken::new(),
            };
            let started = ready(true).boxed();
            let ended = carry(&whole[..length], sink(), false, streams, started).await;
            if length == whole.len() {
                assert!(matches!(ended, SessionEnd::Output), "{ended:?}");
            } else {
                assert!(
                    matches!(ended, SessionEnd::Engine(_)),
                    "{length}: {ended:?}"
                );
                let error = ended.into_error("container", "c");
                assert_eq!(tonic::Status::from(error).code(), tonic::Code::Unavailable);
            }
        }
    }
}
