//! A stream: bytes in both directions, each with an end of its own.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{connection::Shared, headers::Headers};

/// A stream. When both halves are dropped before the other side has ended it, it is reset
/// behind the last data.
#[derive(Debug)]
pub struct Stream {
    headers: Headers,
    reader: ReadHalf,
    writer: WriteHalf,
}

/// What the other side sends. Dropping it drops what still comes.
#[derive(Debug)]
pub struct ReadHalf {
    shared: Arc<Shared>,
    id: u32,
    /// The piece that is being read.
    piece: Bytes,
}

/// What is sent to the other side; a shutdown ends it, and so does dropping it. What was
/// written is sent as soon as the transport takes it, without a flush.
#[derive(Debug)]
pub struct WriteHalf {
    shared: Arc<Shared>,
    id: u32,
}

// === impl Stream ===

impl Stream {
    pub(super) fn new(shared: Arc<Shared>, id: u32, headers: Headers) -> Self {
        Self {
            headers,
            reader: ReadHalf {
                shared: Arc::clone(&shared),
                id,
                piece: Bytes::new(),
            },
            writer: WriteHalf { shared, id },
        }
    }

    /// The stream's number.
    pub fn id(&self) -> u32 {
        self.reader.id
    }

    /// What the other side said when it opened the stream; nothing for a stream of ours.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// Both directions.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Ends both directions at once; what waits to be sent is dropped.
    pub fn reset(self, status: u32) {
        self.writer.reset(status);
    }
}

// === impl ReadHalf ===

impl AsyncBufRead for ReadHalf {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.piece.is_empty() {
            match ready!(this.shared.state.lock().poll_read(this.id, cx)) {
                Ok(piece) => this.piece = piece.unwrap_or_default(),
                Err(_) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
        Poll::Ready(Ok(&this.piece))
    }

    fn consume(mut self: Pin<&mut Self>, count: usize) {
        self.piece.advance(count);
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let piece = ready!(self.as_mut().poll_fill_buf(cx))?;
        let length = piece.len().min(into.remaining());
        into.put_slice(&piece[..length]);
        self.consume(length);
        Poll::Ready(Ok(()))
    }
}

impl Drop for ReadHalf {
    fn drop(&mut self) {
        self.shared.state.lock().drop_reader(self.id);
    }
}

// === impl WriteHalf ===

impl WriteHalf {
    /// Ends both directions of the stream at once; what waits to be sent is dropped.
    pub fn reset(self, status: u32) {
        self.shared.state.lock().reset(self.id, status);
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let mut state = self.shared.state.lock();
        let length = ready!(state.poll_reserve(self.id, data.len(), cx));
        drop(state);
        let length = length.map_err(|()| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let data = Bytes::copy_from_slice(&data[..length]);
        self.shared.state.lock().write(self.id, data);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.state.lock().finish(self.id);
        Poll::Ready(Ok(()))
    }
}

impl Drop for WriteHalf {
    fn drop(&mut self) {
        self.shared.state.lock().drop_writer(self.id);
    }
}
