//! The state of one end of a connection: streams, send queues and windows.
//!
//! It does no I/O: received frames are passed to [`ConnectionState::receive`], and frames to send
//! come from [`ConnectionState::poll_batch`]. Streams and the transport's tasks wake each other
//! through the state.

mod receiving;
mod sending;
mod streams;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    task::Waker,
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::oneshot, time::Instant};

use super::{
    frame::{Frame, status},
    headers::Headers,
};

/// The initial window of streams and connections without SETTINGS.
const DEFAULT_WINDOW: u32 = 64 * 1024;
/// The receive window of a stream in bytes.
pub(super) const STREAM_WINDOW: u32 = 512 * 1024;
/// The receive window of a connection, and the limit on unread data of all its streams.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// The limit on unread data of a stream, including the overhead per piece. Above it, reading from
/// the transport stops.
const STREAM_SHARE: usize = 2 * STREAM_WINDOW as usize;
const LARGEST_WINDOW: u32 = 0x7fff_ffff;
/// The limit on queued data of a stream.
const STREAM_QUEUE: usize = 128 * 1024;
/// The limit on queued data of all streams. A stream without queued data may always add a frame.
const CONNECTION_QUEUE: usize = 1024 * 1024;
/// The maximum size of data in a frame.
const PIECE: usize = 64 * 1024;
/// The amount of data that is passed to the transport at once.
const BATCH: usize = 256 * 1024;
/// The limit on queued control frames. Above it, reading from the transport stops.
const CONTROL_QUEUE: usize = 512;
/// The overhead of a piece of data.
const PIECE_OVERHEAD: usize = 64;
/// The limit on open streams. Above it, the peer's new streams are refused.
const MOST_STREAMS: usize = 2048;
/// The limit on unanswered pings of this side.
const MOST_PINGS: usize = 16;

/// An item to send. Header blocks are compressed when they are sent, since compression depends on
/// their order on the wire.
#[derive(Debug)]
pub(super) enum Outgoing {
    Frame(Frame),
    Syn(u32, Headers),
    Reply(u32),
}

/// A stream that the peer opened and that is not accepted yet.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) id: u32,
    pub(super) headers: Headers,
}

/// A received frame, with its header block decompressed.
#[derive(Debug)]
pub(super) enum ReceivedFrame {
    Syn {
        id: u32,
        fin: bool,
        unidirectional: bool,
        headers: Headers,
    },
    Reply {
        id: u32,
        fin: bool,
    },
    Other(Frame),
}

/// A protocol violation, for which the peer is disconnected.
#[derive(Debug, thiserror::Error)]
pub(super) enum Violation {
    #[error("stream {0} was opened by the wrong side, or after a later one")]
    StreamId(u32),
    #[error("a window of more than 2 GiB")]
    Window,
}

#[derive(Debug, Default)]
struct StreamState {
    // From the peer.
    received: VecDeque<Bytes>,
    received_cost: usize,
    /// Bytes that were read and not returned by a WINDOW_UPDATE yet.
    consumed: u32,
    received_fin: bool,
    reader: Option<Waker>,
    reader_gone: bool,
    // To the peer.
    window: i64,
    /// Queued bytes.
    queued: usize,
    fin_queued: bool,
    writer: Option<Waker>,
    writer_gone: bool,
    // Both directions.
    reply: Option<oneshot::Sender<()>>,
    /// The status of the reset, by either side.
    reset: Option<u32>,
}

/// Whether the peer maintains the connection's window. Some peers have windows for streams only, as
/// in SPDY/3, and never update the connection's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PeerWindow {
    /// The window was not used up yet.
    Unknown,
    /// The window is used up, and this ping was sent after the data.
    Probing(u32),
    /// The peer has updated the window.
    Updated,
    /// The peer answered the ping without updating the window.
    NotUpdated,
}

/// The state of one end of a connection. See the module's documentation.
#[derive(Debug)]
pub(super) struct ConnectionState {
    server: bool,
    streams: HashMap<u32, StreamState>,
    offers: VecDeque<Offer>,
    offered: Option<Waker>,
    /// Items that overtake data: answers, settings, window updates, new streams.
    control: VecDeque<Outgoing>,
    /// Data, and frames that must stay behind it: ends of streams, resets, GOAWAY.
    data: VecDeque<Frame>,
    data_queued: usize,
    sender: Option<Waker>,
    receiver: Option<Waker>,
    /// The ID of the last stream that the peer opened.
    last_theirs: u32,
    next_ours: u32,
    next_ping: u32,
    pings: HashMap<u32, (Instant, oneshot::Sender<Duration>)>,
    /// Whether the peer implements flow control.
    windows: bool,
    /// The connection's send window.
    window: i64,
    /// Whether the connection's send window is obeyed.
    peer_window: PeerWindow,
    /// The initial send window of a new stream.
    first_window: i64,
    /// Bytes that were read on the connection and not returned by a WINDOW_UPDATE yet.
    consumed: u32,
    /// The unread data of all streams, including the overhead per piece.
    received_cost: usize,
    /// The peer accepts no new streams (GOAWAY).
    going: bool,
    /// This side refuses new streams.
    refusing: bool,
    /// The connection ends when all queued items are sent.
    closing: bool,
    closed: bool,
}

impl ConnectionState {
    pub(super) fn new(server: bool) -> Self {
        let mut state = Self {
            server,
            streams: HashMap::new(),
            offers: VecDeque::new(),
            offered: None,
            control: VecDeque::new(),
            data: VecDeque::new(),
            data_queued: 0,
            sender: None,
            receiver: None,
            last_theirs: 0,
            next_ours: if server { 2 } else { 1 },
            next_ping: if server { 2 } else { 1 },
            pings: HashMap::new(),
            windows: false,
            window: DEFAULT_WINDOW.into(),
            peer_window: PeerWindow::Unknown,
            first_window: DEFAULT_WINDOW.into(),
            consumed: 0,
            received_cost: 0,
            going: false,
            refusing: false,
            closing: false,
            closed: false,
        };
        if !server {
            // A server waits until the client shows flow control, so a client shows it first.
            state.announce_window();
        }
        state
    }

    fn announce_window(&mut self) {
        self.send(Outgoing::Frame(Frame::Settings {
            initial_window: Some(STREAM_WINDOW),
        }));
    }

    fn send(&mut self, outgoing: Outgoing) {
        self.control.push_back(outgoing);
        wake(&mut self.sender);
    }

    fn send_behind(&mut self, frame: Frame) {
        self.data.push_back(frame);
        wake(&mut self.sender);
    }

    fn reset_frame(&mut self, id: u32, status: u32) {
        self.send(Outgoing::Frame(Frame::RstStream { id, status }));
    }

    /// Sends a ping; `None` if too many are unanswered or the connection is closing.
    pub(super) fn ping(&mut self) -> Option<oneshot::Receiver<Duration>> {
        if self.closing || self.closed || self.pings.len() >= MOST_PINGS {
            return None;
        }
        let id = self.next_ping_id();
        let (answer, answered) = oneshot::channel();
        self.pings.insert(id, (Instant::now(), answer));
        self.send(Outgoing::Frame(Frame::Ping(id)));
        Some(answered)
    }

    /// Sends a ping and ignores the answer.
    pub(super) fn probe(&mut self) {
        let id = self.next_ping_id();
        self.send(Outgoing::Frame(Frame::Ping(id)));
    }

    fn next_ping_id(&mut self) -> u32 {
        let id = self.next_ping;
        self.next_ping = self.next_ping.wrapping_add(2);
        id
    }

    /// Sends the queued data, resets the open streams and sends GOAWAY.
    pub(super) fn close(&mut self) {
        if self.closing || self.closed {
            return;
        }
        let status = status::CANCEL;
        let open = |it: &StreamState| it.reset.is_none() && !(it.fin_queued && it.received_fin);
        for (id, _) in self.streams.iter().filter(|(_, it)| open(it)) {
            self.data.push_back(Frame::RstStream { id: *id, status });
        }
        self.data.push_back(Frame::GoAway {
            last: self.last_theirs,
            status: 0,
        });
        self.closing = true;
        wake(&mut self.sender);
        wake(&mut self.offered);
    }

    /// Ends all streams, because the transport has ended.
    pub(super) fn closed(&mut self) {
        self.closed = true;
        self.control.clear();
        self.data.clear();
        self.data_queued = 0;
        self.offers.clear();
        self.pings.clear();
        wake(&mut self.offered);
        wake(&mut self.sender);
        wake(&mut self.receiver);
        for stream in self.streams.values_mut() {
            stream.reply = None;
            wake(&mut stream.reader);
            wake(&mut stream.writer);
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// The number of unread bytes.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.streams
            .values()
            .flat_map(|it| &it.received)
            .map(Bytes::len)
            .sum()
    }

    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
