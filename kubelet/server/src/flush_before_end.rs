//! Delays the end of a chunked response until its last bytes are flushed.
//!
//! Go's client reports the end of a chunked response together with the last bytes if both arrive in
//! one TLS record, and the reader with which the API server passes logs to WebSocket clients
//! (`wsstream`) drops bytes that come with the end. Servers in Go write the end after the handler
//! has returned, when its output is already flushed.

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

/// Counts how often a connection was flushed completely.
#[derive(Debug, Default)]
pub(super) struct FlushCount {
    count: AtomicU64,
    waiting: AtomicWaker,
}

impl FlushCount {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

/// A connection that counts its flushes.
pub(super) struct FlushCounting<S> {
    stream: S,
    flushes: Arc<FlushCount>,
}

impl<S> FlushCounting<S> {
    pub(super) fn new(stream: S) -> (Self, Arc<FlushCount>) {
        let flushes = Arc::<FlushCount>::default();
        let counted = Self {
            stream,
            flushes: Arc::clone(&flushes),
        };
        (counted, flushes)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FlushCounting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FlushCounting<S> {
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

/// Delays the end of a response of unknown length until its bytes are flushed. `flushes` belongs to
/// the response's connection.
pub(super) fn flush_before_end(answer: Response, flushes: &Arc<FlushCount>) -> Response {
    if answer.body().size_hint().exact().is_some() {
        return answer;
    }
    let flushes = Arc::clone(flushes);
    answer.map(|body| {
        Body::new(FlushBeforeEnd {
            body,
            flushes,
            given: None,
            is_over: false,
        })
    })
}

struct FlushBeforeEnd {
    body: Body,
    flushes: Arc<FlushCount>,
    /// The number of flushes when the last bytes were handed to the connection.
    given: Option<u64>,
    is_over: bool,
}

impl hyper::body::Body for FlushBeforeEnd {
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
