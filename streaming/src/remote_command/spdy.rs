//! Exec and attach over SPDY. The client opens every stream; a header tells its kind.

use std::time::Duration;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{Session, Version, resize, session::Link};
use crate::{
    Reader, RequestedStreams, Streams, Writer,
    spdy::{Connection, Incoming, Stream, status},
};

/// The header with the kind of a stream.
pub(crate) const STREAM_TYPE: &str = "streamtype";

/// The reason why a client's streams are incomplete.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Incomplete {
    #[error("timed out waiting for client to create streams")]
    TimedOut,
    #[error("the client disconnected before it created its streams")]
    Gone,
}

/// The streams that the client has opened so far.
#[derive(Default)]
struct OpenedStreams {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Session {
    /// Waits until the client has opened all streams that it requested.
    pub(crate) async fn over_spdy<T>(
        io: T,
        version: Version,
        requested: RequestedStreams,
        idle: Duration,
        creation: Duration,
        gone: CancellationToken,
    ) -> Result<Self, Incomplete>
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (connection, mut incoming) = Connection::server(io, idle, gone.clone());
        let resizes = requested.tty && version.resizes();
        let opened = tokio::time::timeout(
            creation,
            OpenedStreams::all(&mut incoming, requested, resizes),
        );
        let opened = opened.await.map_err(|_| Incomplete::TimedOut)?;
        let opened = opened.ok_or(Incomplete::Gone)?;
        // Clients open all streams at the start; dropping this refuses later ones.
        drop(incoming);

        // Version 1 had neither half-close nor error text, and its clients rely on that.
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

impl OpenedStreams {
    /// Waits for all streams; `None` if the connection ends before.
    async fn all(
        incoming: &mut Incoming,
        requested: RequestedStreams,
        resizes: bool,
    ) -> Option<Self> {
        let mut opened = Self::default();
        loop {
            let stream = incoming.next().await?;
            let slot = match stream.header(STREAM_TYPE) {
                Some("error") => Some(&mut opened.error),
                Some("stdin") if requested.stdin => Some(&mut opened.stdin),
                Some("stdout") if requested.stdout => Some(&mut opened.stdout),
                Some("stderr") if requested.stderr => Some(&mut opened.stderr),
                Some("resize") if resizes => Some(&mut opened.resize),
                _ => None,
            };
            match slot {
                Some(slot) if slot.is_none() => *slot = Some(stream.accept()),
                _ => {
                    let kind = stream.header(STREAM_TYPE).unwrap_or_default();
                    tracing::debug!(kind, "refused an unexpected stream");
                }
            }
            let whole = opened.error.is_some()
                && opened.stdin.is_some() == requested.stdin
                && opened.stdout.is_some() == requested.stdout
                && opened.stderr.is_some() == requested.stderr
                && opened.resize.is_some() == resizes;
            if whole {
                return Some(opened);
            }
        }
    }
}
