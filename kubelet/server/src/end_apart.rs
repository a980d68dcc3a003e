//! Ends of answers that are sent apart from their last bytes.
//!
//! Go's client tells the end of a chunked answer together with its last bytes when both
//! come in one record of TLS, and the reader by which the API server gives logs to
//! WebSocket clients (`wsstream`) drops bytes that come with the end. Servers in Go write
//! the end once the handler is done, by when what it wrote is flushed.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use axum::{
    body::{Body, Bytes},
    response::Response,
};
use futures::task::AtomicWaker;
use hyper::body::{Body as _, Frame, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How often everything that a connection was given was sent.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    count: AtomicU64,
    waiting: AtomicWaker,
}

impl Flushes {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

/// A connection whose flushes are counted.
pub(super) struct Counted<S> {
    stream: S,
    flushes: Arc<Flushes>,
}

impl<S> Counted<S> {
    pub(super) fn new(stream: S) -> (Self, Arc<Flushes>) {
        let flushes = Arc::<Flushes>::default();
        let counted = Self {
            stream,
            flushes: Arc::clone(&flushes),
        };
        (counted, flushes)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.flushes.count.fetch_add(1, Ordering::Release);
            self.flushes.waiting.wake();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Sends the end of an answer that does not tell its length once its bytes are sent, on the
/// connection whose flushes these are.
pub(super) fn end_apart(answer: Response, flushes: &Arc<Flushes>) -> Response {
    if answer.body().size_hint().exact().is_some() {
        return answer;
    }
    let flushes = Arc::clone(flushes);
    answer.map(|body| {
        Body::new(Ending {
            body,
            flushes,
            given: None,
            is_over: false,
        })
    })
}

struct Ending {
    body: Body,
    flushes: Arc<Flushes>,
    /// The flushes before the last bytes were given to the connection.
    given: Option<u64>,
    is_over: bool,
}

impl hyper::body::Body for Ending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.is_over {
            match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(frame) => {
                    self.given = Some(self.flushes.count());
                    return Poll::Ready(Some(frame));
                }
                None => self.is_over = true,
            }
        }
        self.flushes.waiting.register(cx.waker());
        if self.given == Some(self.flushes.count()) {
            return Poll::Pending;
        }
        Poll::Ready(None)
    }

    fn is_end_stream(&self) -> bool {
        self.given.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
