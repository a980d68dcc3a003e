//! What both ends of a connection know: its streams, what waits to be sent, and windows.
//!
//! No input or output happens here: frames come in by [`State::receive`] and go out by
//! [`State::poll_batch`]; streams and the transport's tasks wake each other through it.

use std::{
    collections::{HashMap, VecDeque},
    task::{Context, Poll, Waker},
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

    // === what comes in ===

    /// Takes a frame of the other side.
    pub(super) fn receive(&mut self, received: Received) -> Result<(), Violation> {
        match received {
            Received::Syn {
                id,
                fin,
                unidirectional,
                headers,
            } => self.opened(id, fin, unidirectional, headers)?,
            Received::Reply { id, fin } => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    if let Some(reply) = stream.reply.take() {
                        let _ = reply.send(());
                    }
                    if fin {
                        self.fin(id);
                    }
                } else if !self.is_past(id) {
                    self.reset_frame(id, status::INVALID_STREAM);
                }
            }
            Received::Other(frame) => self.other(frame)?,
        }
        Ok(())
    }

    fn opened(
        &mut self,
        id: u32,
        fin: bool,
        unidirectional: bool,
        headers: Headers,
    ) -> Result<(), Violation> {
        let theirs = (id % 2 == 1) == self.server;
        if !theirs || id <= self.last_theirs {
            return Err(Violation::StreamId(id));
        }
        self.last_theirs = id;
        if self.refusing || self.closing || self.streams.len() >= MOST_STREAMS {
            self.reset_frame(id, status::REFUSED_STREAM);
            return Ok(());
        }
        let stream = StreamState {
            window: self.first_window,
            received_fin: fin,
            fin_queued: unidirectional,
            ..StreamState::default()
        };
        self.streams.insert(id, stream);
        self.offers.push_back(Offer { id, headers });
        wake(&mut self.offered);
        Ok(())
    }

    fn other(&mut self, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Data { id, fin, data } => self.data(id, fin, data),
            Frame::Headers { id, fin, .. } => {
                if fin {
                    self.fin(id);
                }
            }
            Frame::RstStream { id, status } => self.was_reset(id, status),
            Frame::Ping(id) => {
                // Odd numbers are a client's.
                if (id % 2 == 1) == self.server {
                    self.send(Outgoing::Frame(Frame::Ping(id)));
                } else if let Some((sent, waiting)) = self.pings.remove(&id) {
                    let _ = waiting.send(sent.elapsed());
                }
            }
            Frame::GoAway { .. } => self.going = true,
            Frame::Settings { initial_window } => {
                self.shows_windows();
                if let Some(window) = initial_window {
                    let change = i64::from(window) - self.first_window;
                    self.first_window = i64::from(window);
                    for stream in self.streams.values_mut() {
                        stream.window += change;
                        if stream.window > LARGEST_WINDOW {
                            return Err(Violation::Window);
                        }
                    }
                    self.wake_writers();
                }
            }
            Frame::WindowUpdate { id, delta } => {
                self.shows_windows();
                if id == 0 {
                    self.window += i64::from(delta);
                    if self.window > LARGEST_WINDOW {
                        return Err(Violation::Window);
                    }
                    self.wake_writers();
                } else if let Some(stream) = self.streams.get_mut(&id) {
                    stream.window += i64::from(delta);
                    if stream.window > LARGEST_WINDOW {
                        self.reset(id, status::FLOW_CONTROL_ERROR);
                    } else {
                        wake(&mut stream.writer);
                    }
                }
            }
            Frame::SynStream { .. } | Frame::SynReply { .. } => {}
        }
        Ok(())
    }

    /// From here on windows count, in both directions.
    fn shows_windows(&mut self) {
        if self.windows {
            return;
        }
        self.windows = true;
        if self.server {
            self.announce_window();
        }
        let more = CONNECTION_WINDOW - DEFAULT_WINDOW as u32;
        self.send(Outgoing::Frame(Frame::WindowUpdate { id: 0, delta: more }));
    }

    fn data(&mut self, id: u32, fin: bool, data: Bytes) {
        let length = data.len();
        let Some(stream) = self.streams.get_mut(&id) else {
            if !self.is_past(id) {
                self.reset_frame(id, status::INVALID_STREAM);
            }
            return self.give_back(id, length);
        };
        if stream.received_fin || stream.reset.is_some() || stream.reader_gone {
            self.give_back(id, length);
        } else if length > 0 {
            let cost = length + PIECE_OVERHEAD;
            stream.received.push_back(data);
            stream.received_cost += cost;
            self.received_cost += cost;
            wake(&mut stream.reader);
        }
        if fin {
            self.fin(id);
        }
    }

    fn fin(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.received_fin = true;
            wake(&mut stream.reader);
            self.forget_if_over(id);
        }
    }

    fn was_reset(&mut self, id: u32, status: u32) {
        self.drop_queue(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.reset.get_or_insert(status);
            stream.reply = None;
            wake(&mut stream.reader);
            wake(&mut stream.writer);
            self.forget_if_over(id);
        }
    }

    /// Whether `id` was a stream, though it is none any more.
    fn is_past(&self, id: u32) -> bool {
        if (id % 2 == 1) == self.server {
            id <= self.last_theirs
        } else {
            id < self.next_ours
        }
    }

    /// Bytes were read, or dropped: the other side may send as many again.
    fn give_back(&mut self, id: u32, length: usize) {
        if !self.windows {
            return;
        }
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        self.consumed = self.consumed.saturating_add(length);
        if self.consumed >= CONNECTION_WINDOW / 2 {
            let delta = std::mem::take(&mut self.consumed);
            self.send(Outgoing::Frame(Frame::WindowUpdate { id: 0, delta }));
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.consumed = stream.consumed.saturating_add(length);
            if stream.consumed >= STREAM_WINDOW / 2 && !stream.received_fin {
                let delta = std::mem::take(&mut stream.consumed);
                self.send(Outgoing::Frame(Frame::WindowUpdate { id, delta }));
            }
        }
    }

    /// Ready when more may be read from the transport.
    pub(super) fn poll_may_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let most = |streams: &HashMap<u32, StreamState>| {
            streams
                .values()
                .all(|it| it.reader_gone || it.received_cost <= 2 * STREAM_WINDOW as usize)
        };
        // The sum is looked at first: below one stream's share no stream can be over its.
        let full = self.control.len() > CONTROL_QUEUE
            || self.received_cost > CONNECTION_WINDOW as usize
            || (self.received_cost > 2 * STREAM_WINDOW as usize && !most(&self.streams));
        if full && !self.closed {
            self.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    // === what goes out ===

    /// Takes what is to be sent next: `None` when everything is sent and the connection
    /// is closing.
    pub(super) fn poll_batch(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Vec<Outgoing>,
    ) -> Poll<Option<()>> {
        if !self.control.is_empty() {
            batch.extend(self.control.drain(..));
            wake(&mut self.receiver);
        }
        let mut size = 0;
        while size < BATCH {
            let Some(frame) = self.data.pop_front() else {
                break;
            };
            size += PIECE_OVERHEAD + data_length(&frame);
            batch.push(Outgoing::Frame(frame));
        }
        if !batch.is_empty() {
            return Poll::Ready(Some(()));
        }
        if self.closing || self.closed {
            return Poll::Ready(None);
        }
        self.sender = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Data of a batch is with the transport.
    pub(super) fn sent(&mut self, batch: impl Iterator<Item = (u32, usize)>) {
        let was_full = self.data_queued >= CONNECTION_QUEUE;
        for (id, length) in batch {
            self.data_queued = self.data_queued.saturating_sub(length);
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.queued = stream.queued.saturating_sub(length);
                wake(&mut stream.writer);
            }
        }
        if was_full && self.data_queued < CONNECTION_QUEUE {
            self.wake_writers();
        }
    }

    fn wake_writers(&mut self) {
        for stream in self.streams.values_mut() {
            wake(&mut stream.writer);
        }
    }

    /// What waits to be sent on a stream that was reset is dropped.
    fn drop_queue(&mut self, id: u32) {
        let mut dropped = 0;
        self.data.retain(|frame| match frame {
            Frame::Data { id: of, data, .. } if *of == id => {
                dropped += data.len();
                false
            }
            _ => true,
        });
        if dropped == 0 {
            return;
        }
        self.data_queued -= dropped;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.queued -= dropped;
        }
        self.wake_writers();
    }

    // === streams ===

    /// Opens a stream; the receiver resolves when the other side accepts it.
    pub(super) fn open(&mut self, headers: Headers) -> Option<(u32, oneshot::Receiver<()>)> {
        if self.going || self.closing || self.closed || self.next_ours > LARGEST_WINDOW as u32 {
            return None;
        }
        let id = self.next_ours;
        self.next_ours += 2;
        let (reply, replied) = oneshot::channel();
        let stream = StreamState {
            window: self.first_window,
            reply: Some(reply),
            ..StreamState::default()
        };
        self.streams.insert(id, stream);
        self.send(Outgoing::Syn(id, headers));
        Some((id, replied))
    }

    pub(super) fn poll_offer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Offer>> {
        if let Some(offer) = self.offers.pop_front() {
            return Poll::Ready(Some(offer));
        }
        if self.closed || self.closing {
            return Poll::Ready(None);
        }
        self.offered = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Refuses what the other side offers from now on, and what it has offered.
    pub(super) fn refuse_new(&mut self) {
        self.refusing = true;
        for offer in std::mem::take(&mut self.offers) {
            self.refuse(offer.id);
        }
    }

    pub(super) fn refuse(&mut self, id: u32) {
        self.reset(id, status::REFUSED_STREAM);
        self.streams.remove(&id);
    }

    pub(super) fn accept(&mut self, id: u32) {
        self.send(Outgoing::Reply(id));
    }

    /// The next data of a stream; `None` at its end.
    pub(super) fn poll_read(
        &mut self,
        id: u32,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, u32>> {
        let Some(stream) = self.streams.get_mut(&id) else {
            return Poll::Ready(Ok(None));
        };
        if let Some(data) = stream.received.pop_front() {
            let cost = data.len() + PIECE_OVERHEAD;
            stream.received_cost -= cost;
            self.received_cost -= cost;
            self.give_back(id, data.len());
            wake(&mut self.receiver);
            return Poll::Ready(Ok(Some(data)));
        }
        if stream.received_fin {
            return Poll::Ready(Ok(None));
        }
        if let Some(status) = stream.reset {
            return Poll::Ready(Err(status));
        }
        if self.closed {
            return Poll::Ready(Err(0));
        }
        stream.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Reserves room on a stream for as many of `wanted` bytes as may be queued now; an
    /// error when none ever may. [`State::write`] must follow.
    pub(super) fn poll_reserve(
        &mut self,
        id: u32,
        wanted: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<usize, ()>> {
        let over = self.closed || self.closing;
        let crowded = self.data_queued >= CONNECTION_QUEUE;
        let Some(stream) = self.streams.get_mut(&id) else {
            return Poll::Ready(Err(()));
        };
        if over || stream.fin_queued || stream.reset.is_some() {
            return Poll::Ready(Err(()));
        }
        let window = if self.windows {
            usize::try_from(stream.window.min(self.window)).unwrap_or(0)
        } else {
            PIECE
        };
        let room = STREAM_QUEUE.saturating_sub(stream.queued);
        if window == 0 || room == 0 || (crowded && stream.queued > 0) {
            stream.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let length = wanted.min(window).min(room).min(PIECE);
        stream.queued += length;
        self.data_queued += length;
        // Kept from the beginning, for when the other side turns out to count it.
        let counted = i64::try_from(length).unwrap_or(i64::MAX);
        stream.window -= counted;
        self.window -= counted;
        Poll::Ready(Ok(length))
    }

    /// Queues data that room was reserved for.
    pub(super) fn write(&mut self, id: u32, data: Bytes) {
        match self.streams.get_mut(&id) {
            Some(stream) if stream.reset.is_none() && !self.closed => {
                let fin = false;
                self.send_behind(Frame::Data { id, fin, data });
            }
            Some(stream) => {
                stream.queued = stream.queued.saturating_sub(data.len());
                self.data_queued = self.data_queued.saturating_sub(data.len());
            }
            None => self.data_queued = self.data_queued.saturating_sub(data.len()),
        }
    }

    /// Ends what is sent on a stream.
    pub(super) fn finish(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.fin_queued || stream.reset.is_some() || self.closing || self.closed {
            return;
        }
        stream.fin_queued = true;
        let (fin, data) = (true, Bytes::new());
        self.send_behind(Frame::Data { id, fin, data });
    }

    /// Ends a stream in both directions; what waits to be sent on it is dropped.
    pub(super) fn reset(&mut self, id: u32, status: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let over = stream.received_fin && stream.fin_queued;
        if over || stream.reset.is_some() || self.closing || self.closed {
            return;
        }
        self.was_reset(id, status);
        self.send_behind(Frame::RstStream { id, status });
    }

    pub(super) fn drop_reader(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.reader_gone = true;
        stream.reader = None;
        let unread: usize = stream.received.iter().map(Bytes::len).sum();
        stream.received.clear();
        self.received_cost -= std::mem::take(&mut stream.received_cost);
        self.give_back(id, unread);
        wake(&mut self.receiver);
        self.forget_if_over(id);
    }

    pub(super) fn drop_writer(&mut self, id: u32) {
        self.finish(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.writer_gone = true;
            stream.writer = None;
            self.forget_if_over(id);
        }
    }

    /// Forgets a stream whose halves are gone. One that the other side has not ended is
    /// reset behind the last data: nobody will read what still comes.
    fn forget_if_over(&mut self, id: u32) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if !stream.reader_gone || !stream.writer_gone {
            return;
        }
        let ended = stream.received_fin || stream.reset.is_some();
        self.streams.remove(&id);
        if !ended && !self.closing && !self.closed {
            let status = status::CANCEL;
            self.send_behind(Frame::RstStream { id, status });
        }
    }

    // === the connection ===

    /// Sends a ping; `None` when too many wait for their answer.
    pub(super) fn ping(&mut self) -> Option<oneshot::Receiver<Duration>> {
        if self.closing || self.closed || self.pings.len() >= MOST_PINGS {
            return None;
        }
        let id = self.next_ping;
        self.next_ping = self.next_ping.wrapping_add(2);
        let (answer, answered) = oneshot::channel();
        self.pings.insert(id, (Instant::now(), answer));
        self.send(Outgoing::Frame(Frame::Ping(id)));
        Some(answered)
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

    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }
}

pub(super) fn data_length(frame: &Frame) -> usize {
    match frame {
        Frame::Data { data, .. } => data.len(),
        _ => 0,
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
