//! Truncates the output of commands while it arrives, so that no response to `ExecSync` is ever
//! held in memory as a whole, however much a container prints and however many probes run.
//!
//! The gRPC library delivers complete messages only, so this module works on the bytes of the
//! response body: messages with a five-byte header (flag and length) that contain the fields of an
//! `ExecSyncResponse` (`stdout` 1, `stderr` 2, `exit_code` 3).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use cri_streaming::bound::Bound;
use hyper::body::{Body as HttpBody, Frame};
use tonic::{Status, body::Body};

use super::MAX_MESSAGE_SIZE;

/// Bytes kept of stdout and of stderr. Upstream's probes keep as many of both together.
pub const KEPT: usize = 10 * 1024;

/// Size of a message header: flag and length.
const HEAD: usize = 5;
/// Size of the longest varint.
const MAX_NUMBER: usize = 10;
/// Size of the longest truncated message: both outputs and the small fields.
const MAX_CUT: usize = 2 * KEPT + 1024;
const STDOUT: u64 = 1;
const STDERR: u64 = 2;

/// A response body whose messages are truncated.
#[derive(Debug)]
pub(super) struct TruncatedBody {
    body: Body,
    truncator: Truncator,
}

/// Truncates messages that arrive in pieces.
#[derive(Debug)]
struct Truncator {
    at: ParseState,
    /// Remaining bytes of the message.
    left: usize,
    /// Bytes received so far of a header or varint.
    number: Vec<u8>,
    /// The truncated message.
    message: BytesMut,
    /// Whether anything was cut off.
    is_cut: bool,
    bound: Arc<Bound>,
}

/// The part of the response that is expected next.
#[derive(Clone, Copy, Debug)]
enum ParseState {
    Head,
    Key,
    /// The value of a varint field.
    Value,
    /// The length of the field with this key.
    Length(u64),
    /// The bytes of a field: how many to keep, and how many to drop after them.
    Bytes {
        kept: usize,
        cut: usize,
    },
}

impl TruncatedBody {
    pub(super) fn new(body: Body, bound: Arc<Bound>) -> Self {
        let truncator = Truncator {
            at: ParseState::Head,
            left: 0,
            number: Vec::new(),
            message: BytesMut::new(),
            is_cut: false,
            bound,
        };
        Self { body, truncator }
    }
}

impl HttpBody for TruncatedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)?) else {
                return Poll::Ready(None);
            };
            let piece = match frame.into_data() {
                Ok(piece) => piece,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            };
            let whole = self.truncator.take(piece)?;
            if !whole.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(whole))));
            }
        }
    }
}

impl Truncator {
    /// Consumes a piece and returns the messages that it completes.
    fn take(&mut self, mut piece: Bytes) -> Result<Bytes, Status> {
        let mut whole = BytesMut::new();
        while !piece.is_empty() {
            match self.at {
                ParseState::Head => self.head(&mut piece)?,
                ParseState::Bytes { kept, cut } => self.bytes(&mut piece, kept, cut),
                ParseState::Key | ParseState::Value | ParseState::Length(_) => {
                    self.number(&mut piece)?
                }
            }
            if self.message.len() > MAX_CUT {
                return Err(malformed("has unexpected fields"));
            }
            if self.left == 0 && matches!(self.at, ParseState::Key) {
                self.end(&mut whole)?;
            }
        }
        Ok(whole.freeze())
    }

    fn head(&mut self, piece: &mut Bytes) -> Result<(), Status> {
        let missing = (HEAD - self.number.len()).min(piece.len());
        self.number.extend(piece.split_to(missing));
        let [flag, length @ ..] = &*self.number else {
            return Ok(());
        };
        let Ok(length) = <[u8; 4]>::try_from(length) else {
            return Ok(());
        };
        if *flag != 0 {
            return Err(malformed("is compressed"));
        }
        self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if self.left > MAX_MESSAGE_SIZE {
            let reason = format!(
                "decoded message length too large: found {} bytes, the limit is: {MAX_MESSAGE_SIZE} bytes",
                self.left
            );
            return Err(Status::out_of_range(reason));
        }
        self.number.clear();
        self.at = ParseState::Key;
        Ok(())
    }

    /// Consumes one byte of a varint, and processes the varint after its last byte.
    fn number(&mut self, piece: &mut Bytes) -> Result<(), Status> {
        let byte = piece.get_u8();
        self.left = self
            .left
            .checked_sub(1)
            .ok_or_else(|| malformed("is too short"))?;
        self.number.push(byte);
        if byte & 0x80 != 0 {
            return match self.number.len() < MAX_NUMBER && self.left > 0 {
                true => Ok(()),
                false => Err(malformed("has an unterminated number")),
            };
        }
        let bits = self.number.iter().rev();
        let value = bits.fold(0, |value: u64, byte| value << 7 | u64::from(byte & 0x7f));
        self.at = match self.at {
            ParseState::Length(key) => self.field(key, value)?,
            ParseState::Key => {
                let at = match value & 7 {
                    0 => ParseState::Value,
                    1 => self.fixed(8)?,
                    2 => ParseState::Length(value),
                    5 => self.fixed(4)?,
                    _ => return Err(malformed("has a field of an unknown type")),
                };
                // The length of a bytes field changes, so its key is written together with it.
                if !matches!(at, ParseState::Length(_)) {
                    self.message.extend_from_slice(&self.number);
                }
                at
            }
            _ => {
                self.message.extend_from_slice(&self.number);
                ParseState::Key
            }
        };
        self.number.clear();
        Ok(())
    }

    /// Starts a bytes field with this key and length.
    fn field(&mut self, key: u64, length: u64) -> Result<ParseState, Status> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > self.left {
            return Err(malformed("has a field that is longer than the message"));
        }
        let kept = match key >> 3 {
            STDOUT | STDERR => length.min(KEPT),
            // An unknown field.
            _ => 0,
        };
        self.is_cut |= kept < length;
        put_number(&mut self.message, key);
        put_number(&mut self.message, u64::try_from(kept).unwrap_or(u64::MAX));
        Ok(bytes(kept, length - kept))
    }

    /// Starts an unknown field of fixed length.
    fn fixed(&mut self, length: usize) -> Result<ParseState, Status> {
        match length > self.left {
            true => Err(malformed("is too short")),
            false => Ok(ParseState::Bytes {
                kept: length,
                cut: 0,
            }),
        }
    }

    fn bytes(&mut self, piece: &mut Bytes, kept: usize, cut: usize) {
        let goes_on = kept.min(piece.len());
        self.message.extend_from_slice(&piece.split_to(goes_on));
        let is_left_out = cut.min(piece.len());
        piece.advance(is_left_out);
        self.left -= goes_on + is_left_out;
        self.at = bytes(kept - goes_on, cut - is_left_out);
    }

    /// Returns the finished message.
    fn end(&mut self, whole: &mut BytesMut) -> Result<(), Status> {
        if std::mem::take(&mut self.is_cut) {
            self.bound.reach();
        }
        let length = u32::try_from(self.message.len());
        whole.put_u8(0);
        whole.put_u32(length.map_err(|_| malformed("is too long"))?);
        whole.extend_from_slice(&self.message);
        self.message.clear();
        self.at = ParseState::Head;
        Ok(())
    }
}

/// The part that follows when this many bytes of a field are left.
const fn bytes(kept: usize, cut: usize) -> ParseState {
    match (kept, cut) {
        (0, 0) => ParseState::Key,
        _ => ParseState::Bytes { kept, cut },
    }
}

fn put_number(message: &mut BytesMut, mut value: u64) {
    while value > 0x7f {
        message.put_u8((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    message.put_u8((value & 0x7f) as u8);
}

fn malformed(why: &str) -> Status {
    Status::internal(format!("the ExecSync response {why}"))
}

#[cfg(test)]
mod tests;
