//! What both ends of a connection know: its streams, what waits to be sent, and windows.
//!
//! No input or output happens here: frames come in by [`State::receive`] and go out by
//! [`State::poll_batch`]; streams and the transport's tasks wake each other through it.

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

/// The window that streams and connections begin with unless settings say otherwise.
const DEFAULT_WINDOW: i64 = 64 * 1024;
/// What a stream may be sent ahead of its reader, and what is kept for it at most.
pub(super) const STREAM_WINDOW: u32 = 512 * 1024;
/// The same for all streams of a connection together.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// What is kept for a stream, with what its pieces cost, before no more is read.
const STREAM_SHARE: usize = 2 * STREAM_WINDOW as usize;
const LARGEST_WINDOW: i64 = 0x7fff_ffff;
/// What a stream may have waiting to be sent.
const STREAM_QUEUE: usize = 128 * 1024;
/// What all streams together may; one that has nothing waiting may always add a frame.
const CONNECTION_QUEUE: usize = 1024 * 1024;
/// Data in one frame at most.
const PIECE: usize = 64 * 1024;
/// What goes to the transport at once.
const BATCH: usize = 256 * 1024;
/// Control frames that wait to be sent before no more is read.
const CONTROL_QUEUE: usize = 512;
/// What a piece of data costs beside its bytes.
const PIECE_OVERHEAD: usize = 64;
/// Streams that the other side may have open at once.
const MOST_STREAMS: usize = 2048;
/// Pings of ours that were not answered.
const MOST_PINGS: usize = 16;

/// Something to send, in order. Blocks are compressed when they are sent, since their
/// order on the wire is the order of the compression.
#[derive(Debug)]
pub(super) enum Outgoing {
    Frame(Frame),
    Syn(u32, Headers),
    Reply(u32),
}

/// A stream that the other side opened and that was not accepted yet.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) id: u32,
    pub(super) headers: Headers,
}

/// What a frame's headers were inflated to.
#[derive(Debug)]
pub(super) enum Received {
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

/// Why the other side has to be cut off.
#[derive(Debug, thiserror::Error)]
pub(super) enum Violation {
    #[error("stream {0} is opened by the wrong side, or after a later one")]
    StreamId(u32),
    #[error("a window of more than 2 GiB")]
    Window,
}

#[derive(Debug, Default)]
struct StreamState {
    // from the other side
    received: VecDeque<Bytes>,
    received_cost: usize,
    /// Read, and not given back as window yet.
    consumed: u32,
    received_fin: bool,
    reader: Option<Waker>,
    reader_gone: bool,
    // to the other side
    window: i64,
    /// Bytes that wait to be sent.
    queued: usize,
    fin_queued: bool,
    writer: Option<Waker>,
    writer_gone: bool,
    // both
    reply: Option<oneshot::Sender<()>>,
    /// The status it was reset with, by either side.
    reset: Option<u32>,
}

/// Whether the other side keeps a window for the connection. Some that have one for each
/// stream, as SPDY/3 had it, never give anything back on this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counts {
    /// It was not used up yet.
    Unknown,
    /// It is used up, and this ping was sent behind the data.
    Asked(u32),
    /// Something was given back.
    Yes,
    /// The ping was answered, and nothing given back.
    No,
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    server: bool,
    streams: HashMap<u32, StreamState>,
    offers: VecDeque<Offer>,
    offered: Option<Waker>,
    /// What overtakes data: answers, settings, windows, new streams.
    control: VecDeque<Outgoing>,
    /// Data, and what must stay behind it: ends, resets, the farewell.
    data: VecDeque<Frame>,
    data_queued: usize,
    sender: Option<Waker>,
    receiver: Option<Waker>,
    /// The last stream that the other side opened.
    last_theirs: u32,
    next_ours: u32,
    next_ping: u32,
    pings: HashMap<u32, (Instant, oneshot::Sender<Duration>)>,
    /// The other side does flow control.
    windows: bool,
    /// What may be sent on the connection.
    window: i64,
    /// Whether that counts.
    window_counts: Counts,
    /// What may be sent on a new stream.
    first_window: i64,
    /// Read on the connection, and not given back yet.
    consumed: u32,
    /// What is kept for all readers.
    received_cost: usize,
    /// The other side takes no new streams.
    going: bool,
    /// This side takes no new streams.
    refusing: bool,
    /// What is queued is to be sent, and then nothing.
    closing: bool,
    closed: bool,
}

impl State {
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
            window: DEFAULT_WINDOW,
            window_counts: Counts::Unknown,
            first_window: DEFAULT_WINDOW,
            consumed: 0,
            received_cost: 0,
            going: false,
            refusing: false,
            closing: false,
            closed: false,
        };
        if !server {
            // A server waits for the client to show flow control, so a client shows it.
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

    /// Sends a ping; `None` when too many wait for their answer.
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

    /// Sends a ping without waiting for its answer.
    pub(super) fn probe(&mut self) {
        let id = self.next_ping_id();
        self.send(Outgoing::Frame(Frame::Ping(id)));
    }

    fn next_ping_id(&mut self) -> u32 {
        let id = self.next_ping;
        self.next_ping = self.next_ping.wrapping_add(2);
        id
    }

    /// Sends what is queued, ends every stream and says good-bye.
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

    /// The transport is gone.
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

    /// Bytes that are kept for readers.
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
