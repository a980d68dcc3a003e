//! A byte stream in the binary messages of a WebSocket.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures::{Sink as _, Stream as _};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message},
};

/// The maximum size of data in a message.
const PIECE: usize = 64 * 1024;

/// A byte stream over a WebSocket. Message boundaries are not significant.
#[derive(Debug)]
pub(crate) struct Tunnel<T> {
    socket: WebSocketStream<T>,
    /// Received data that was not read yet.
    rest: Bytes,
}

impl<T> Tunnel<T> {
    pub(crate) fn new(socket: WebSocketStream<T>) -> Self {
        Self {
            socket,
            rest: Bytes::new(),
        }
    }
}

fn failed(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        Error::ConnectionClosed | Error::AlreadyClosed => io::ErrorKind::BrokenPipe.into(),
        other => io::Error::other(other),
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Tunnel<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.socket).poll_next(cx)) {
                Some(Ok(Message::Binary(data))) => self.rest = data,
                Some(Ok(Message::Text(_))) => {
                    let error = io::Error::new(
                        io::ErrorKind::InvalidData,
                        "a text message in a binary tunnel",
                    );
                    return Poll::Ready(Err(error));
                }
                Some(Ok(_)) => {}
                None | Some(Err(Error::ConnectionClosed | Error::AlreadyClosed)) => {
                    return Poll::Ready(Ok(()));
                }
                Some(Err(error)) => return Poll::Ready(Err(failed(error))),
            }
        }
        let length = self.rest.len().min(into.remaining());
        into.put_slice(&self.rest[..length]);
        self.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Tunnel<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(Pin::new(&mut self.socket).poll_ready(cx)).map_err(failed)?;
        let length = data.len().min(PIECE);
        let message = Message::Binary(Bytes::copy_from_slice(&data[..length]));
        Pin::new(&mut self.socket)
            .start_send(message)
            .map_err(failed)?;
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx).map_err(failed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.socket).poll_close(cx)) {
            Err(Error::ConnectionClosed | Error::AlreadyClosed) | Ok(()) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(failed(error))),
        }
    }
}
