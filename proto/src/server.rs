//! The listener of the gRPC servers of both binaries.

mod authority;

use std::{
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use authority::Authorities;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    time::{Sleep, sleep},
};
use tonic::{
    codegen::tokio_stream::Stream,
    transport::server::{Connected, UdsConnectInfo},
};
use tracing::warn;

/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_secs(1);

/// The accepted connections of a unix socket, for
/// [`serve_with_incoming`](tonic::transport::server::Router::serve_with_incoming).
///
/// HTTP/2 names the server by `:authority`. A unix socket has no host name, and some clients send
/// values that are invalid in URIs: gRPC's C core (Python, C++, Ruby) sends the percent-encoded
/// path, Java the path. Other gRPC servers accept that, but h2 resets the stream. These servers do
/// not use the authority, so invalid values are replaced by valid ones.
///
/// While connections cannot be accepted, because the process has too many open files, clients wait. The
/// server does not learn of it: it would ask again at once, and without end.
#[derive(Debug)]
pub struct Incoming {
    listener: UnixListener,
    /// Runs after a connection could not be accepted.
    pause: Option<Pin<Box<Sleep>>>,
}

/// A connection that [`Incoming`] accepted.
pub struct Accepted {
    stream: UnixStream,
    authorities: Authorities,
}

// === impl Incoming ===

impl From<UnixListener> for Incoming {
    fn from(listener: UnixListener) -> Self {
        Self {
            listener,
            pause: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Accepted>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    let authorities = Authorities::default();
                    return Poll::Ready(Some(Ok(Accepted {
                        stream,
                        authorities,
                    })));
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    warn!(%error, "cannot accept a connection; trying again in a second");
                    self.pause = Some(Box::pin(sleep(PAUSE)));
                }
            }
        }
    }
}

// === impl Accepted ===

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}

impl Connected for Accepted {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        self.authorities.pass(&mut buffer.filled_mut()[before..]);
        Poll::Ready(read)
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
