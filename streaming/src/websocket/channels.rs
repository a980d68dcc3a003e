//! Numbered channels in one WebSocket. A message consists of a channel number and data. In
//! `base64.` subprotocols, messages are text: the number is a digit and the data is base64.
//!
//! All channels share one connection, so a channel whose data is not read stalls all channels, by
//! the back-pressure of TCP. Upstream behaves the same.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures::{SinkExt as _, Stream, StreamExt as _, stream::SplitSink};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        self, Message,
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};
use tokio_util::{
    io::StreamReader,
    sync::{CancellationToken, PollSender},
};

use crate::{PROBE_PAUSE, Reader, Writer, idle::Activity};

/// The first byte of the message that closes a channel.
const CLOSE_SIGNAL: u8 = 255;
/// The maximum number of queued outgoing messages.
const QUEUE: usize = 8;
/// The maximum size of data in a message.
const PIECE: usize = 32 * 1024;
/// The time that the peer has to answer a close.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// The encoding of channels in messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codec {
    pub(crate) base64: bool,
    /// Whether single channels can be closed.
    pub(crate) close_signal: bool,
}

/// The channels of a WebSocket.
pub(crate) struct Channels {
    /// The readers by channel number; `None` for a channel that was not requested or is already
    /// taken.
    inputs: Vec<Option<Reader>>,
    outgoing: mpsc::Sender<Message>,
    codec: Codec,
    driver: JoinHandle<()>,
}

/// The writer of a channel.
struct ChannelWriter {
    number: u8,
    codec: Codec,
    outgoing: PollSender<Message>,
    /// Whether shutdown has to send a close signal; false once it is sent.
    tells_end: bool,
}

/// The meaning of a message.
#[derive(Debug, PartialEq, Eq)]
enum ChannelMessage {
    Nothing,
    Data(u8, Bytes),
    Close(u8),
}

/// The reason why a message is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum Malformed {
    #[error("a close signal is followed by {0} bytes instead of one channel")]
    CloseSignal(usize),
    #[error("data of channel {0} is not base64")]
    Base64(u8),
}

// === impl Channels ===

impl Channels {
    /// Serves channels over `socket`. Data is received for the channels that are true in `inputs`,
    /// and discarded for all others. `gone` is cancelled when the peer has disconnected or no data
    /// was transferred for `idle`; cancelling it closes the connection.
    pub(crate) fn open<T>(
        socket: WebSocketStream<T>,
        codec: Codec,
        inputs: &[bool],
        idle: Duration,
        gone: CancellationToken,
    ) -> Self
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (outgoing, messages) = mpsc::channel(QUEUE);
        let (senders, readers) = inputs
            .iter()
            .map(|wanted| wanted.then(input).unzip())
            .unzip();
        let probes = outgoing.downgrade();
        let driver = tokio::spawn(drive(socket, codec, senders, messages, probes, idle, gone));
        Self {
            inputs: readers,
            outgoing,
            codec,
            driver,
        }
    }

    /// Takes the reader of a channel; `None` after the first call.
    pub(crate) fn reader(&mut self, number: u8) -> Option<Reader> {
        self.inputs.get_mut(usize::from(number))?.take()
    }

    /// Returns a writer of a channel. Shutting it down sends nothing: a server closes the whole
    /// connection instead of single channels.
    pub(crate) fn writer(&self, number: u8) -> Writer {
        self.channel(number, false)
    }

    /// As [`Self::writer`], but shutting it down closes the channel if the protocol supports it.
    pub(crate) fn client_writer(&self, number: u8) -> Writer {
        self.channel(number, self.codec.close_signal)
    }

    fn channel(&self, number: u8, tells_end: bool) -> Writer {
        Box::new(ChannelWriter {
            number,
            codec: self.codec,
            outgoing: PollSender::new(self.outgoing.clone()),
            tells_end,
        })
    }

    /// Sends an empty message on a channel. Must be called before anything else is sent.
    pub(crate) fn announce(&self, number: u8) {
        // The queue is empty at the start. An error means that the connection has ended, and `gone`
        // is cancelled then.
        let _ = self.outgoing.try_send(self.codec.data(number, &[]));
    }

    /// Closes the connection once all writers are dropped and everything they wrote is sent.
    pub(crate) async fn finish(self) {
        let Self {
            inputs,
            outgoing,
            driver,
            ..
        } = self;
        drop(inputs);
        let farewell = CloseFrame {
            code: CloseCode::Normal,
            reason: tungstenite::Utf8Bytes::default(),
        };
        let _ = outgoing.send(Message::Close(Some(farewell))).await;
        drop(outgoing);
        let _ = driver.await;
    }
}

/// Creates the queue of a channel's input, for at most one message.
fn input() -> (mpsc::Sender<Bytes>, Reader) {
    let (sender, receiver) = mpsc::channel(1);
    let stream = ReceiverStream::new(receiver).map(Ok::<_, io::Error>);
    (sender, Box::new(StreamReader::new(stream)))
}

async fn drive<T>(
    socket: WebSocketStream<T>,
    codec: Codec,
    inputs: Vec<Option<mpsc::Sender<Bytes>>>,
    outgoing: mpsc::Receiver<Message>,
    probes: mpsc::WeakSender<Message>,
    idle: Duration,
    gone: CancellationToken,
) where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let activity = Activity::new();
    let (sink, stream) = socket.split();
    let reading = read(stream, codec, inputs, probes, &activity);
    let writing = write(sink, outgoing, &activity);
    tokio::pin!(reading, writing);
    tokio::select! {
        () = &mut reading => {}
        () = activity.idle(idle) => tracing::debug!("a WebSocket was idle for too long"),
        () = gone.cancelled() => {}
        // Keep reading: if the socket is closed with unread data, the peer's kernel may discard
        // data of ours that the peer has not read yet.
        () = &mut writing => drop(tokio::time::timeout(CLOSE_PATIENCE, reading).await),
    }
    gone.cancel();
}

async fn read(
    mut stream: impl Stream<Item = tungstenite::Result<Message>> + Unpin,
    codec: Codec,
    mut inputs: Vec<Option<mpsc::Sender<Bytes>>>,
    probes: mpsc::WeakSender<Message>,
    activity: &Activity,
) {
    while let Some(message) = stream.next().await {
        let data = match message {
            Ok(Message::Binary(data)) => data,
            Ok(Message::Text(text)) => text.into(),
            Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
            Ok(Message::Close(_)) => continue,
            Err(error) => {
                tracing::debug!(%error, "a WebSocket ended");
                return;
            }
        };
        activity.touch();
        match codec.parse(data) {
            Ok(ChannelMessage::Nothing) => {}
            Ok(ChannelMessage::Close(number)) => {
                if let Some(input) = inputs.get_mut(usize::from(number)) {
                    *input = None;
                }
            }
            Ok(ChannelMessage::Data(number, data)) => {
                let Some(input) = inputs.get_mut(usize::from(number)) else {
                    continue;
                };
                if let Some(sender) = input
                    && !data.is_empty()
                    && !pass_on(sender, data, &probes).await
                {
                    *input = None;
                }
                activity.touch();
            }
            Err(error) => {
                tracing::debug!(%error, "closing a WebSocket after a malformed message");
                return;
            }
        }
    }
}

/// Passes data to a channel's reader once there is room; returns false if the reader was dropped.
/// Nothing is read from the connection in the meantime, so a ping is sent every [`PROBE_PAUSE`]:
/// sending fails if the peer is gone.
async fn pass_on(
    reader: &mpsc::Sender<Bytes>,
    data: Bytes,
    probes: &mpsc::WeakSender<Message>,
) -> bool {
    let sending = reader.send(data);
    tokio::pin!(sending);
    loop {
        if let Ok(sent) = tokio::time::timeout(PROBE_PAUSE, &mut sending).await {
            return sent.is_ok();
        }
        if let Some(outgoing) = probes.upgrade() {
            // If the queue is full, sending its messages detects a lost peer.
            let _ = outgoing.try_send(Message::Ping(Bytes::new()));
        }
    }
}

async fn write<T>(
    mut sink: SplitSink<WebSocketStream<T>, Message>,
    mut outgoing: mpsc::Receiver<Message>,
    activity: &Activity,
) where
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = outgoing.recv().await {
        if sink.send(message).await.is_err() {
            return;
        }
        activity.touch();
    }
    let _ = sink.close().await;
}

// === impl Codec ===

impl Codec {
    fn parse(self, message: Bytes) -> Result<ChannelMessage, Malformed> {
        let Some((&first, rest)) = message.split_first() else {
            return Ok(ChannelMessage::Nothing);
        };
        if self.close_signal && first == CLOSE_SIGNAL {
            return match rest {
                [channel] => Ok(ChannelMessage::Close(*channel)),
                _ => Err(Malformed::CloseSignal(rest.len())),
            };
        }
        if self.base64 {
            let channel = first.wrapping_sub(b'0');
            let data = STANDARD
                .decode(rest)
                .map_err(|_| Malformed::Base64(channel))?;
            return Ok(ChannelMessage::Data(channel, data.into()));
        }
        Ok(ChannelMessage::Data(first, message.slice(1..)))
    }

    fn data(self, channel: u8, data: &[u8]) -> Message {
        if self.base64 {
            let mut text = String::from(char::from(b'0' + channel));
            STANDARD.encode_string(data, &mut text);
            return Message::Text(text.into());
        }
        let mut bytes = BytesMut::with_capacity(1 + data.len());
        bytes.put_u8(channel);
        bytes.put_slice(data);
        Message::Binary(bytes.freeze())
    }
}

// === impl ChannelWriter ===

impl AsyncWrite for ChannelWriter {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        ready!(self.outgoing.poll_reserve(cx)).map_err(gone)?;
        let length = data.len().min(PIECE);
        let message = self.codec.data(self.number, &data[..length]);
        self.outgoing.send_item(message).map_err(gone)?;
        Poll::Ready(Ok(length))
    }

    /// Queued messages are sent in order, without a flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.tells_end {
            let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
            ready!(self.outgoing.poll_reserve(cx)).map_err(gone)?;
            let message = Message::Binary(Bytes::copy_from_slice(&[CLOSE_SIGNAL, self.number]));
            self.outgoing.send_item(message).map_err(gone)?;
            self.tells_end = false;
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codecs() -> impl Strategy<Value = Codec> {
        (any::<bool>(), any::<bool>()).prop_map(|(base64, close_signal)| Codec {
            base64,
            close_signal,
        })
    }

    proptest! {
        #[test]
        fn what_is_sent_is_understood(
            codec in codecs(),
            channel in 0_u8..10,
            data in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let bytes = codec.data(channel, &data).into_data();
            prop_assert_eq!(codec.parse(bytes), Ok(ChannelMessage::Data(channel, data.into())));
        }

        #[test]
        fn anything_may_come(codec in codecs(), data in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = codec.parse(data.into());
        }
    }

    #[test]
    fn a_close_signal_names_one_channel() {
        let v5 = Codec {
            base64: false,
            close_signal: true,
        };
        let v4 = Codec {
            base64: false,
            close_signal: false,
        };
        let parse = |codec: Codec, bytes: &'static [u8]| codec.parse(Bytes::from_static(bytes));
        assert_eq!(parse(v5, &[255, 0]), Ok(ChannelMessage::Close(0)));
        assert_eq!(parse(v5, &[255]), Err(Malformed::CloseSignal(0)));
        assert_eq!(parse(v5, &[255, 0, 0]), Err(Malformed::CloseSignal(2)));
        assert_eq!(
            parse(v4, &[255, 7]),
            Ok(ChannelMessage::Data(255, Bytes::from_static(&[7])))
        );
        assert_eq!(parse(v5, &[]), Ok(ChannelMessage::Nothing));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_is_noticed_even_when_nobody_reads() {
        let (near, far) = tokio::io::duplex(1000);
        let role = tungstenite::protocol::Role::Server;
        let server = WebSocketStream::from_raw_socket(far, role, None).await;
        let role = tungstenite::protocol::Role::Client;
        let mut client = WebSocketStream::from_raw_socket(near, role, None).await;
        let codec = Codec {
            base64: false,
            close_signal: false,
        };
        let (gone, hour) = (CancellationToken::new(), Duration::from_secs(3600));
        let unread = Channels::open(server, codec, &[true], hour, gone.clone());
        let patience = Duration::from_secs(60);
        let message = || Message::Binary(Bytes::from_static(b"\0some input"));
        while tokio::time::timeout(patience, client.send(message()))
            .await
            .is_ok()
        {}
        assert!(!gone.is_cancelled());
        drop(client);
        let noticed = tokio::time::timeout(patience, gone.cancelled()).await;
        assert!(noticed.is_ok());
        drop(unread);
    }
}
