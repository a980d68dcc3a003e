//! A connection with many streams over one transport.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

use super::{
    frame::status,
    headers::Headers,
    state::{ConnectionState, Offer},
    stream::Stream,
    transport,
};

/// The time that the peer has to accept a stream, as in upstream's clients.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(30);

/// The reason why an operation on a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The connection has ended, or the peer accepts no new streams.
    #[error("the connection is closed")]
    Closed,
    /// The peer refused the stream.
    #[error("the stream was refused")]
    Refused,
    /// The peer did not answer in time.
    #[error("no answer after {} s", .0.as_secs())]
    Timeout(Duration),
}

/// One end of a connection. Dropping it closes the connection, as [`Connection::close`] does.
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    gone: CancellationToken,
}

/// The streams that the peer opens. Dropping it refuses them.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Shared>,
}

/// A stream that the peer opened. Dropping it without accepting it refuses the stream.
#[derive(Debug)]
pub struct NewStream {
    shared: Arc<Shared>,
    /// `None` once the stream is accepted.
    offer: Option<Offer>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<ConnectionState>,
}

// === impl Connection ===

impl Connection {
    /// Starts the server's end over `io`. `gone` is cancelled when the transport has ended or no
    /// data was transferred for `idle`; cancelling it closes the connection.
    pub fn server<T>(io: T, idle: Duration, gone: CancellationToken) -> (Self, Incoming)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::start(io, ConnectionState::new(true), idle, gone)
    }

    /// Starts the client's end; otherwise as [`Connection::server`].
    pub fn client<T>(io: T, idle: Duration, gone: CancellationToken) -> (Self, Incoming)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        Self::start(io, ConnectionState::new(false), idle, gone)
    }

    fn start<T>(
        io: T,
        state: ConnectionState,
        idle: Duration,
        gone: CancellationToken,
    ) -> (Self, Incoming)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
        });
        tokio::spawn(transport::run(io, Arc::clone(&shared), idle, gone.clone()));
        let incoming = Incoming {
            shared: Arc::clone(&shared),
        };
        (Self { shared, gone }, incoming)
    }

    /// Opens a stream and waits until the peer accepts it.
    ///
    /// # Errors
    /// [`Error`]; the stream is reset in that case.
    pub async fn open(&self, headers: Headers) -> Result<Stream, Error> {
        let opened = self.shared.state.lock().open(headers);
        let (id, replied) = opened.ok_or(Error::Closed)?;
        // Dropping it resets the stream, also when this future is cancelled.
        let stream = Stream::new(Arc::clone(&self.shared), id, Headers::default());
        match tokio::time::timeout(ACCEPT_PATIENCE, replied).await {
            Ok(Ok(())) => Ok(stream),
            Ok(Err(_)) if self.shared.state.lock().is_closed() => Err(Error::Closed),
            Ok(Err(_)) => Err(Error::Refused),
            Err(_) => {
                stream.reset(status::CANCEL);
                Err(Error::Timeout(ACCEPT_PATIENCE))
            }
        }
    }

    /// Sends a ping and returns the round-trip time.
    ///
    /// # Errors
    /// [`Error::Closed`], also when too many pings are unanswered.
    pub async fn ping(&self) -> Result<Duration, Error> {
        let answered = self.shared.state.lock().ping().ok_or(Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)
    }

    /// Sends the queued data, resets the streams that are still open and sends GOAWAY.
    pub fn close(&self) {
        self.shared.state.lock().close();
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.shared.state.lock().kept()
    }

    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.shared.state.lock().streams()
    }

    /// Resolves when the transport has ended, on either side.
    pub async fn closed(&self) {
        self.gone.cancelled().await;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl Incoming ===

impl Incoming {
    /// Waits for the next stream; `None` when the connection has ended.
    pub async fn next(&mut self) -> Option<NewStream> {
        let offer = std::future::poll_fn(|cx| self.shared.state.lock().poll_offer(cx)).await?;
        Some(NewStream {
            shared: Arc::clone(&self.shared),
            offer: Some(offer),
        })
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.shared.state.lock().refuse_new();
    }
}

// === impl NewStream ===

impl NewStream {
    /// The stream's ID.
    pub fn id(&self) -> u32 {
        self.offer.as_ref().map_or(0, |offer| offer.id)
    }

    /// A header with which the peer opened the stream.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.offer.as_ref()?.headers.get(name)
    }

    /// Accepts the stream.
    pub fn accept(mut self) -> Stream {
        let offer = self.offer.take().unwrap_or(Offer {
            id: 0,
            headers: Headers::default(),
        });
        self.shared.state.lock().accept(offer.id);
        Stream::new(Arc::clone(&self.shared), offer.id, offer.headers)
    }
}

impl Drop for NewStream {
    fn drop(&mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared.state.lock().refuse(offer.id);
        }
    }
}
