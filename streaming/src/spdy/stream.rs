//! A stream: bytes in both directions. Each direction ends separately.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use super::{connection::Shared, headers::Headers};

/// A stream. If both halves are dropped before the peer has ended its direction, the stream is
/// reset after the last data.
#[derive(Debug)]
pub struct Stream {
    headers: Headers,
    reader: ReadHalf,
    writer: WriteHalf,
}

/// The data from the peer. Dropping it discards further data.
#[derive(Debug)]
pub struct ReadHalf {
    shared: Arc<Shared>,
    id: u32,
    /// The rest of the current piece of data.
    piece: Bytes,
}

/// The data to the peer. Shutting it down or dropping it ends the direction. Written data is sent
/// as soon as the transport accepts it, without a flush.
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

    /// The stream's ID.
    pub fn id(&self) -> u32 {
        self.reader.id
    }

    /// A header with which the peer opened the stream; `None` for a stream that this side opened.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)
    }

    /// Splits the stream into its directions.
    pub fn split(self) -> (ReadHalf, WriteHalf) {
        (self.reader, self.writer)
    }

    /// Ends both directions immediately and discards queued data.
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
    /// Ends both directions of the stream immediately and discards queued data.
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
