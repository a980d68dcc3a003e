//! The sending of frames.

use std::task::{Context, Poll};

use bytes::Bytes;

use super::{
    BATCH, CONNECTION_QUEUE, ConnectionState, Outgoing, PIECE, PIECE_OVERHEAD, PeerWindow,
    STREAM_QUEUE, wake,
};
use crate::spdy::frame::Frame;

impl ConnectionState {
    /// Returns the next items to send in `batch`; `None` when everything is sent and the connection
    /// is closing.
    pub(in crate::spdy) fn poll_batch(
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

    /// Uncounts queued data that the transport has accepted.
    pub(in crate::spdy) fn sent(&mut self, batch: impl Iterator<Item = (u32, usize)>) {
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

    pub(super) fn wake_writers(&mut self) {
        for stream in self.streams.values_mut() {
            wake(&mut stream.writer);
        }
    }

    /// Discards the queued data of a stream that is reset. The stream's own count is not updated,
    /// since nothing is queued on it again.
    pub(super) fn drop_queue(&mut self, id: u32) {
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
        self.wake_writers();
    }

    /// Reserves queue space on a stream for up to `wanted` bytes; fails if the stream is closed for
    /// sending. [`ConnectionState::write`] must follow.
    pub(in crate::spdy) fn poll_reserve(
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
        let window = match self.peer_window {
            _ if !self.windows => i64::MAX,
            PeerWindow::NotUpdated => stream.window,
            _ => stream.window.min(self.window),
        };
        let window = usize::try_from(window).unwrap_or(0);
        let room = STREAM_QUEUE.saturating_sub(stream.queued);
        if window == 0 || room == 0 || (crowded && stream.queued > 0) {
            stream.writer = Some(cx.waker().clone());
            if self.windows && self.window <= 0 && self.peer_window == PeerWindow::Unknown {
                let ping = self.next_ping_id();
                self.peer_window = PeerWindow::Probing(ping);
                self.send_behind(Frame::Ping(ping));
            }
            return Poll::Pending;
        }
        let length = wanted.min(window).min(room).min(PIECE);
        stream.queued += length;
        self.data_queued += length;
        // The windows are counted from the start, since the peer may show flow control later.
        let counted = i64::try_from(length).unwrap_or(i64::MAX);
        stream.window -= counted;
        self.window -= counted;
        Poll::Ready(Ok(length))
    }

    /// Queues data for which space was reserved.
    pub(in crate::spdy) fn write(&mut self, id: u32, data: Bytes) {
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

    /// Ends the sending direction of a stream.
    pub(in crate::spdy) fn finish(&mut self, id: u32) {
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
}

fn data_length(frame: &Frame) -> usize {
    match frame {
        Frame::Data { data, .. } => data.len(),
        _ => 0,
    }
}
