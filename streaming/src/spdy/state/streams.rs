//! The life cycle of streams.

use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::{ConnectionState, LARGEST_WINDOW, Offer, Outgoing, PIECE_OVERHEAD, StreamState, wake};
use crate::spdy::{
    frame::{Frame, status},
    headers::Headers,
};

impl ConnectionState {
    /// Opens a stream; the receiver resolves when the peer accepts it.
    pub(in crate::spdy) fn open(
        &mut self,
        headers: Headers,
    ) -> Option<(u32, oneshot::Receiver<()>)> {
        if self.going || self.closing || self.closed || self.next_ours > LARGEST_WINDOW {
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

    pub(in crate::spdy) fn poll_offer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Offer>> {
        if let Some(offer) = self.offers.pop_front() {
            return Poll::Ready(Some(offer));
        }
        if self.closed || self.closing {
            return Poll::Ready(None);
        }
        self.offered = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Refuses all new streams of the peer, including those not accepted yet.
    pub(in crate::spdy) fn refuse_new(&mut self) {
        self.refusing = true;
        for offer in std::mem::take(&mut self.offers) {
            self.refuse(offer.id);
        }
    }

    pub(in crate::spdy) fn refuse(&mut self, id: u32) {
        self.reset(id, status::REFUSED_STREAM);
        self.drop_reader(id);
        self.drop_writer(id);
    }

    pub(in crate::spdy) fn accept(&mut self, id: u32) {
        self.send(Outgoing::Reply(id));
    }

    /// Returns the next data of a stream; `None` at its end.
    pub(in crate::spdy) fn poll_read(
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

    /// Ends a stream in both directions and discards its queued data.
    pub(in crate::spdy) fn reset(&mut self, id: u32, status: u32) {
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

    pub(in crate::spdy) fn drop_reader(&mut self, id: u32) {
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

    pub(in crate::spdy) fn drop_writer(&mut self, id: u32) {
        self.finish(id);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.writer_gone = true;
            stream.writer = None;
            self.forget_if_over(id);
        }
    }

    /// Removes a stream when both of its halves are dropped. If the peer has not ended it, it is
    /// reset after the last data, since further data would not be read.
    pub(super) fn forget_if_over(&mut self, id: u32) {
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
}
