//! The streams over SPDY: the client opens each and says by a header which it is.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{Session, Version, resize, session::Link};
use crate::{
    Reader, Streams, Wants, Writer,
    spdy::{Connection, Incoming, Stream, status},
};

/// Says which of a command's streams a stream is.
pub(crate) const STREAM_TYPE: &str = "streamtype";

/// The client did not open what it has to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Incomplete {
    #[error("timed out waiting for client to create streams")]
    TimedOut,
    #[error("the client left before it created its streams")]
    Gone,
}

/// What the client opened so far.
#[derive(Default)]
struct Opened {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Session {
    /// Waits for the client to open the streams that it said it wants.
    pub(crate) async fn over_spdy<T>(
        io: T,
        version: Version,
        wants: Wants,
        idle: Duration,
        creation: Duration,
        gone: CancellationToken,
    ) -> Result<Self, Incomplete>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (connection, mut incoming) = Connection::server(io, idle, gone.clone());
        let resizes = wants.tty && version.resizes();
        let opened = tokio::time::timeout(creation, Opened::all(&mut incoming, wants, resizes));
        let opened = opened.await.map_err(|_| Incomplete::TimedOut)?;
        let opened = opened.ok_or(Incomplete::Gone)?;
        // A command has no more streams than those it begins with.
        drop(incoming);

        // The first version gave clients no half-close and no error text, and they
        // count on it.
        let first = version == Version::V1;
        let status = opened.error.and_then(|stream| {
            if first {
                stream.reset(status::CANCEL);
                return None;
            }
            Some(Box::new(stream.split().1) as Writer)
        });
        let (stdin, held) = match opened.stdin.map(Stream::split) {
            Some((reader, writer)) => (Some(Box::new(reader) as Reader), Some(writer)),
            None => (None, None),
        };
        let output = |stream: Stream| {
            let (reader, writer) = stream.split();
            drop(reader);
            Box::new(writer) as Writer
        };
        let resize = opened.resize.map(|stream| {
            let (sizes, sizes_to_come) = mpsc::channel(1);
            tokio::spawn(resize::follow(stream.split().0, sizes));
            sizes_to_come
        });
        Ok(Self {
            streams: Some(Streams {
                stdin,
                stdout: opened.stdout.map(output),
                stderr: opened.stderr.map(output),
                resize,
                gone,
            }),
            status,
            format: version.status_format(),
            link: Link::Spdy(connection, held.filter(|_| !first)),
        })
    }
}

impl Opened {
    /// `None` when the connection ends before.
    async fn all(incoming: &mut Incoming, wants: Wants, resizes: bool) -> Option<Self> {
        let mut opened = Self::default();
        loop {
            let stream = incoming.next().await?;
            let slot = match stream.header(STREAM_TYPE) {
                Some("error") => Some(&mut opened.error),
                Some("stdin") if wants.stdin => Some(&mut opened.stdin),
                Some("stdout") if wants.stdout => Some(&mut opened.stdout),
                Some("stderr") if wants.stderr => Some(&mut opened.stderr),
                Some("resize") if resizes => Some(&mut opened.resize),
                _ => None,
            };
            match slot {
                Some(slot) if slot.is_none() => *slot = Some(stream.accept()),
                _ => {
                    let kind = stream.header(STREAM_TYPE).unwrap_or_default();
                    tracing::debug!(kind, "a stream that was not asked for is refused");
                }
            }
            let whole = opened.error.is_some()
                && opened.stdin.is_some() == wants.stdin
                && opened.stdout.is_some() == wants.stdout
                && opened.stderr.is_some() == wants.stderr
                && opened.resize.is_some() == resizes;
            if whole {
                return Some(opened);
            }
        }
    }
}
