//! A client's streams joined to those that the engine handed over.

use cri_streaming::{Reader, Streams, Writer};
use tokio::io::AsyncWriteExt as _;

use crate::{
    Error,
    engine::{self, Cause, EngineError, HijackedReader, HijackedWriter, OutputError},
};

/// How a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The process writes nothing more, and everything it wrote was taken.
    Output,
    /// The client left.
    ClientGone,
    /// The engine's connection broke.
    Engine(std::io::Error),
}

/// Carries input and output until the output ends or either side is gone.
pub(super) async fn carry(
    from: HijackedReader,
    to: HijackedWriter,
    tty: bool,
    streams: Streams,
) -> Ended {
    let Streams {
        stdin,
        stdout,
        stderr,
        gone,
        ..
    } = streams;
    let output = async {
        let (mut stdout, mut stderr) = (or_sink(stdout), or_sink(stderr));
        let carried = engine::carry(from, tty, &mut stdout, &mut stderr).await;
        // The end of each is told only when all is well: a client takes it for the
        // command's.
        if carried.is_ok() {
            let _ = stdout.shutdown().await;
            let _ = stderr.shutdown().await;
        }
        carried
    };
    let ended = tokio::select! {
        carried = output => match carried {
            Ok(()) => Ended::Output,
            Err(OutputError::Taker(_)) => Ended::ClientGone,
            Err(OutputError::Engine(error)) => Ended::Engine(error),
        },
        never = input(stdin, to) => match never {},
        () = gone.cancelled() => Ended::ClientGone,
    };
    // When everything was taken it does not matter who left first.
    match ended {
        Ended::Engine(_) if gone.is_cancelled() => Ended::ClientGone,
        ended => ended,
    }
}

fn or_sink(stream: Option<Writer>) -> Writer {
    stream.unwrap_or_else(|| Box::new(tokio::io::sink()))
}

/// Carries input and its end, and holds the engine's connection until it is dropped.
async fn input(stdin: Option<Reader>, mut to: HijackedWriter) -> std::convert::Infallible {
    if let Some(mut stdin) = stdin {
        match tokio::io::copy_buf(&mut stdin, &mut to).await {
            Ok(_) => {
                let _ = to.shutdown().await;
            }
            // A process that reads no more may well write on.
            Err(error) => tracing::debug!(%error, "input is dropped"),
        }
    }
    std::future::pending().await
}

// === impl Ended ===

impl Ended {
    /// For a session that did not end with its output.
    pub(super) fn into_error(self, kind: &'static str, id: &str) -> Error {
        let cause = match self {
            Self::Output | Self::ClientGone => {
                return Error::FailedPrecondition(format!("the client of {kind} {id} has left"));
            }
            Self::Engine(error) => Cause::Unreachable(error.to_string()),
        };
        Error::Engine(EngineError {
            action: "carry the streams of",
            object: format!("{kind} {id}"),
            cause,
        })
    }
}
