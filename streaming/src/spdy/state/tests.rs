//! Tests of one end without a transport: frames are passed to it, and the frames that it would send
//! are taken.

mod receiving;
mod sending;
mod streams;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;

use super::{ConnectionState, Outgoing, ReceivedFrame, Violation};
use crate::spdy::{
    frame::{Frame, status},
    headers::Headers,
};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// The overhead of a piece of data.
const OVERHEAD: usize = 64;

struct End(ConnectionState);

impl End {
    fn server() -> Self {
        Self(ConnectionState::new(true))
    }

    /// Creates a client that has sent its settings.
    fn client() -> Self {
        let mut client = Self(ConnectionState::new(false));
        client.says();
        client
    }

    fn try_receive(&mut self, frame: Frame) -> Result<(), Violation> {
        self.0.receive(ReceivedFrame::Other(frame))
    }

    #[track_caller]
    fn receive(&mut self, frame: Frame) {
        self.try_receive(frame).unwrap();
    }

    /// Opens streams as the peer, and accepts them.
    #[track_caller]
    fn accept(&mut self, ids: impl IntoIterator<Item = u32>) {
        for id in ids {
            let syn = ReceivedFrame::Syn {
                id,
                fin: false,
                unidirectional: false,
                headers: Headers::default(),
            };
            self.0.receive(syn).unwrap();
            self.0.accept(id);
        }
        self.says();
    }

    fn receive_data(&mut self, id: u32, length: usize) {
        let (fin, data) = (false, Bytes::from(vec![7; length]));
        self.receive(Frame::Data { id, fin, data });
    }

    fn receive_end(&mut self, id: u32) {
        self.receive(end(id));
    }

    /// Reads the next piece of data from a stream.
    fn read(&mut self, id: u32) -> Poll<Result<Option<Bytes>, u32>> {
        self.0.poll_read(id, &mut idle())
    }

    fn takes_more(&mut self) -> bool {
        self.0.poll_may_receive(&mut idle()).is_ready()
    }

    /// Queues data; returns whether there was space for all of it.
    fn queue(&mut self, id: u32, length: usize) -> bool {
        self.queue_or_wake(id, length, Waker::noop())
    }

    fn queue_or_wake(&mut self, id: u32, length: usize, waker: &Waker) -> bool {
        let mut cx = Context::from_waker(waker);
        match self.0.poll_reserve(id, length, &mut cx) {
            Poll::Ready(Ok(room)) => {
                self.0.write(id, Bytes::from(vec![7; room]));
                room == length
            }
            Poll::Ready(Err(())) | Poll::Pending => false,
        }
    }

    fn drop_halves(&mut self, id: u32) {
        self.0.drop_reader(id);
        self.0.drop_writer(id);
    }

    /// Takes the next batch for the transport; `None` when the connection has ended.
    fn batch(&mut self) -> Poll<Option<Vec<Frame>>> {
        let mut batch = Vec::new();
        let polled = self.0.poll_batch(&mut idle(), &mut batch);
        polled.map(|more| more.map(|()| batch.into_iter().map(frame).collect()))
    }

    /// Marks frames as accepted by the transport.
    fn carried(&mut self, frames: &[Frame]) {
        self.0.sent(frames.iter().filter_map(|frame| match frame {
            Frame::Data { id, data, .. } => Some((*id, data.len())),
            _ => None,
        }));
    }

    /// Takes all queued frames, as accepted by the transport.
    #[track_caller]
    fn says(&mut self) -> Vec<Frame> {
        let mut said = Vec::new();
        for _ in 0..100 {
            let Poll::Ready(Some(batch)) = self.batch() else {
                return said;
            };
            self.carried(&batch);
            said.extend(batch);
        }
        panic!("the output does not end");
    }
}

/// A context that needs no waking.
fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Converts an item to a frame without its headers, which are not compared here.
fn frame(outgoing: Outgoing) -> Frame {
    let (fin, block) = (false, Bytes::new());
    match outgoing {
        Outgoing::Frame(frame) => frame,
        Outgoing::Syn(id, _) => Frame::SynStream {
            id,
            associated: 0,
            priority: 0,
            fin,
            unidirectional: false,
            block,
        },
        Outgoing::Reply(id) => Frame::SynReply { id, fin, block },
    }
}

/// The frame that ends the sending direction of a stream.
fn end(id: u32) -> Frame {
    let (fin, data) = (true, Bytes::new());
    Frame::Data { id, fin, data }
}

fn reset(id: u32, status: u32) -> Frame {
    Frame::RstStream { id, status }
}

fn settings(window: u32) -> Frame {
    let initial_window = Some(window);
    Frame::Settings { initial_window }
}

fn update(id: u32, delta: u32) -> Frame {
    Frame::WindowUpdate { id, delta }
}

fn good_bye(last: u32) -> Frame {
    Frame::GoAway { last, status: 0 }
}

/// The stream IDs of the data in `frames`, in order.
fn pieces(frames: &[Frame]) -> Vec<u32> {
    let piece = |frame: &Frame| match frame {
        Frame::Data { id, .. } => Some(*id),
        _ => None,
    };
    frames.iter().filter_map(piece).collect()
}

/// A waker that counts how often it was woken.
#[derive(Default)]
struct Waiting(AtomicUsize);

impl Waiting {
    fn new() -> (Arc<Self>, Waker) {
        let waiting = Arc::<Self>::default();
        (Arc::clone(&waiting), Waker::from(waiting))
    }

    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Waiting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
