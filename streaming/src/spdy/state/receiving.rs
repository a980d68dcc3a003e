//! The handling of received frames.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::{
    CONNECTION_WINDOW, CONTROL_QUEUE, ConnectionState, DEFAULT_WINDOW, LARGEST_WINDOW,
    MOST_STREAMS, Offer, Outgoing, PIECE_OVERHEAD, PeerWindow, ReceivedFrame, STREAM_SHARE,
    STREAM_WINDOW, StreamState, Violation, wake,
};
use crate::spdy::{
    frame::{Frame, status},
    headers::Headers,
};

impl ConnectionState {
    /// Handles a frame from the peer.
    pub(in crate::spdy) fn receive(&mut self, received: ReceivedFrame) -> Result<(), Violation> {
        match received {
            ReceivedFrame::Syn {
                id,
                fin,
                unidirectional,
                headers,
            } => self.opened(id, fin, unidirectional, headers)?,
            ReceivedFrame::Reply { id, fin } => {
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
            ReceivedFrame::Other(frame) => self.other(frame)?,
        }
        Ok(())
    }

    pub(super) fn opened(
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

    pub(super) fn other(&mut self, frame: Frame) -> Result<(), Violation> {
        match frame {
            Frame::Data { id, fin, data } => self.data(id, fin, data),
            Frame::Headers { id, fin, .. } => {
                if fin {
                    self.fin(id);
                }
            }
            Frame::RstStream { id, status } => self.was_reset(id, status),
            Frame::Ping(id) => {
                // Odd IDs are the client's.
                if (id % 2 == 1) == self.server {
                    self.send(Outgoing::Frame(Frame::Ping(id)));
                } else if self.peer_window == PeerWindow::Probing(id) {
                    self.peer_window = PeerWindow::NotUpdated;
                    self.wake_writers();
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
                        if stream.window > LARGEST_WINDOW.into() {
                            return Err(Violation::Window);
                        }
                    }
                    self.wake_writers();
                }
            }
            Frame::WindowUpdate { id, delta } => {
                self.shows_windows();
                if id == 0 {
                    self.peer_window = PeerWindow::Updated;
                    self.window += i64::from(delta);
                    if self.window > LARGEST_WINDOW.into() {
                        return Err(Violation::Window);
                    }
                    self.wake_writers();
                } else if let Some(stream) = self.streams.get_mut(&id) {
                    stream.window += i64::from(delta);
                    if stream.window > LARGEST_WINDOW.into() {
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

    /// Enables flow control in both directions, because the peer has shown it.
    pub(super) fn shows_windows(&mut self) {
        if self.windows {
            return;
        }
        self.windows = true;
        if self.server {
            self.announce_window();
        }
        let more = CONNECTION_WINDOW - DEFAULT_WINDOW;
        self.send(Outgoing::Frame(Frame::WindowUpdate { id: 0, delta: more }));
    }

    pub(super) fn data(&mut self, id: u32, fin: bool, data: Bytes) {
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

    pub(super) fn fin(&mut self, id: u32) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.received_fin = true;
            wake(&mut stream.reader);
            self.forget_if_over(id);
        }
    }

    pub(super) fn was_reset(&mut self, id: u32, status: u32) {
        self.drop_queue(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.reset.get_or_insert(status);
            stream.reply = None;
            wake(&mut stream.reader);
            wake(&mut stream.writer);
            self.forget_if_over(id);
        }
    }

    /// Checks whether `id` is the ID of a stream that has ended.
    pub(super) fn is_past(&self, id: u32) -> bool {
        if (id % 2 == 1) == self.server {
            id <= self.last_theirs
        } else {
            id < self.next_ours
        }
    }

    /// Returns window to the peer for bytes that were read or discarded.
    pub(super) fn give_back(&mut self, id: u32, length: usize) {
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

    /// Ready when more data may be read from the transport.
    pub(in crate::spdy) fn poll_may_receive(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let too_much = |it: &StreamState| it.received_cost > STREAM_SHARE;
        // The total is checked first: if it is below the share of one stream, no stream exceeds its
        // share.
        let full = self.control.len() > CONTROL_QUEUE
            || self.received_cost > CONNECTION_WINDOW as usize
            || (self.received_cost > STREAM_SHARE && self.streams.values().any(too_much));
        if full && !self.closed {
            self.receiver = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}
