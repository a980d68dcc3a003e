//! The two tasks of a connection, one that reads frames and one that writes them. They are
//! independent, so that two ends that both write do not deadlock.

use std::{io, sync::Arc, time::Duration};

use bytes::{Buf, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::{
    connection::Shared,
    frame::{Decoder, Frame, FrameError},
    headers::{Deflater, HeaderError, Headers, Inflater},
    state::{Outgoing, ReceivedFrame, Violation},
};
use crate::{PROBE_PAUSE, idle::Activity};

/// The read size, at the start and while much data arrives.
const SMALL_READ: usize = 4 * 1024;
const LARGE_READ: usize = 256 * 1024;
/// Data below this size is copied, so that a single byte does not keep a whole read buffer
/// allocated.
const COPY_BELOW: usize = 8 * 1024;
/// The time that the peer has to close its side, or to receive the last data.
const CLOSE_PATIENCE: Duration = Duration::from_secs(2);

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
enum ConnectionEnd {
    #[error("closed by the other side")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("malformed: {0}")]
    Frame(#[from] FrameError),
    #[error("malformed: {0}")]
    Header(#[from] HeaderError),
    #[error("not allowed: {0}")]
    Violation(#[from] Violation),
}

/// Runs a connection until it ends or `gone` is cancelled; cancels `gone` at the end.
pub(super) async fn run<T>(io: T, shared: Arc<Shared>, idle: Duration, gone: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let activity = Activity::new();
    let (from, to) = tokio::io::split(io);
    let reading = read(from, &shared, &activity);
    let writing = write(to, &shared, &activity);
    tokio::pin!(reading, writing);
    tokio::select! {
        end = &mut reading => match end {
            // The peer may still read: send what is queued.
            ConnectionEnd::Closed => {
                shared.state.lock().close();
                gone.cancel();
                drop(tokio::time::timeout(CLOSE_PATIENCE, writing).await);
            }
            end => tracing::debug!(%end, "a SPDY connection ended"),
        },
        // Keep reading: if the socket is closed with unread data, the peer's kernel may discard
        // data of ours that the peer has not read yet.
        () = &mut writing => {
            drop(tokio::time::timeout(CLOSE_PATIENCE, reading).await);
        }
        () = activity.idle(idle) => tracing::debug!("a SPDY connection was idle for too long"),
        () = gone.cancelled() => {}
    }
    shared.state.lock().closed();
    gone.cancel();
}

async fn read(
    mut from: impl AsyncRead + Unpin,
    shared: &Shared,
    activity: &Activity,
) -> ConnectionEnd {
    match read_frames(&mut from, shared, activity).await {
        Ok(()) => ConnectionEnd::Closed,
        Err(end) => end,
    }
}

async fn read_frames(
    from: &mut (impl AsyncRead + Unpin),
    shared: &Shared,
    activity: &Activity,
) -> Result<(), ConnectionEnd> {
    let mut decoder = Decoder::default();
    let mut inflater = Inflater::default();
    let mut buffer = BytesMut::new();
    let mut size = SMALL_READ;
    loop {
        may_receive(shared).await;
        if buffer.is_empty() {
            // The old buffer may be larger than `size`: do not keep it while waiting.
            buffer = BytesMut::new();
        }
        buffer.reserve(size);
        let room = buffer.capacity() - buffer.len();
        let length = from.read_buf(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        activity.touch();
        size = if length >= room {
            (2 * size).min(LARGE_READ)
        } else if length < size / 4 {
            (size / 2).max(SMALL_READ)
        } else {
            size
        };
        while let Some(frame) = decoder.decode(&mut buffer)? {
            let received = inflate(frame, &mut inflater)?;
            shared.state.lock().receive(received)?;
        }
    }
}

/// Waits until more data may be received. Nothing is read from the connection in the meantime, so a
/// ping is sent every [`PROBE_PAUSE`]: sending fails if the peer is gone.
async fn may_receive(shared: &Shared) {
    let room = std::future::poll_fn(|cx| shared.state.lock().poll_may_receive(cx));
    tokio::pin!(room);
    while tokio::time::timeout(PROBE_PAUSE, &mut room).await.is_err() {
        shared.state.lock().probe();
    }
}

/// Decompresses the header block of a frame. No block may be skipped, since later blocks depend on
/// it.
fn inflate(frame: Frame, inflater: &mut Inflater) -> Result<ReceivedFrame, HeaderError> {
    Ok(match frame {
        Frame::SynStream {
            id,
            fin,
            unidirectional,
            block,
            ..
        } => ReceivedFrame::Syn {
            id,
            fin,
            unidirectional,
            headers: inflater.inflate(&block)?,
        },
        Frame::SynReply { id, fin, block } => {
            inflater.inflate(&block)?;
            ReceivedFrame::Reply { id, fin }
        }
        Frame::Headers { id, fin, block } => {
            inflater.inflate(&block)?;
            let block = Bytes::new();
            ReceivedFrame::Other(Frame::Headers { id, fin, block })
        }
        Frame::Data { id, fin, data } if data.len() < COPY_BELOW => {
            let data = Bytes::copy_from_slice(&data);
            ReceivedFrame::Other(Frame::Data { id, fin, data })
        }
        frame => ReceivedFrame::Other(frame),
    })
}

async fn write(mut to: impl AsyncWrite + Unpin, shared: &Shared, activity: &Activity) {
    let mut deflater = Deflater::default();
    let mut batch = Vec::new();
    let mut chunks = Chunks::default();
    loop {
        let more = std::future::poll_fn(|cx| shared.state.lock().poll_batch(cx, &mut batch)).await;
        if more.is_none() {
            let _ = to.shutdown().await;
            return;
        }
        let vectored = to.is_write_vectored();
        let mut sent = Vec::new();
        for outgoing in batch.drain(..) {
            let frame = encode(outgoing, &mut deflater);
            frame.encode_head(&mut chunks.head);
            if let Frame::Data { id, data, .. } = frame
                && !data.is_empty()
            {
                sent.push((id, data.len()));
                chunks.push(data, vectored);
            }
        }
        chunks.seal();
        while chunks.has_remaining() {
            match to.write_buf(&mut chunks).await {
                Ok(0) | Err(_) => return,
                Ok(_) => activity.touch(),
            }
        }
        if to.flush().await.is_err() {
            return;
        }
        shared.state.lock().sent(sent.into_iter());
    }
}

fn encode(outgoing: Outgoing, deflater: &mut Deflater) -> Frame {
    match outgoing {
        Outgoing::Frame(frame) => frame,
        Outgoing::Syn(id, headers) => Frame::SynStream {
            id,
            associated: 0,
            priority: 0,
            fin: false,
            unidirectional: false,
            block: deflater.deflate(&headers),
        },
        Outgoing::Reply(id) => Frame::SynReply {
            id,
            fin: false,
            block: deflater.deflate(&Headers::default()),
        },
    }
}

/// The bytes to write. Data is not copied if the transport supports vectored writes.
#[derive(Debug, Default)]
struct Chunks {
    /// Bytes that are not in a chunk yet.
    head: BytesMut,
    chunks: std::collections::VecDeque<Bytes>,
}

impl Chunks {
    fn push(&mut self, data: Bytes, vectored: bool) {
        if !vectored || data.len() < 1024 {
            self.head.put_slice(&data);
            return;
        }
        self.seal();
        self.chunks.push_back(data);
    }

    fn seal(&mut self) {
        if !self.head.is_empty() {
            let head = self.head.split().freeze();
            self.chunks.push_back(head);
        }
    }
}

impl Buf for Chunks {
    fn remaining(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&[], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [io::IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, chunk) in into.iter_mut().zip(&self.chunks) {
            *slot = io::IoSlice::new(chunk);
            count += 1;
        }
        count
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(front) = self.chunks.front_mut() else {
                return;
            };
            let length = front.len().min(count);
            front.advance(length);
            count -= length;
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
    }
}
