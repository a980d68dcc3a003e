//! The encoding of frames.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// The supported version of SPDY's framing.
const VERSION: u16 = 3;
const CONTROL: u16 = 0x8000;
/// The length of a frame header.
const HEADER: usize = 8;
/// The maximum length of a control frame. Those of Kubernetes are below 1 KiB.
const LONGEST_CONTROL: usize = 32 * 1024;
/// Stream IDs and window sizes have 31 bits.
const MASK: u32 = 0x7fff_ffff;
const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
const WINDOW_UPDATE: u16 = 9;

/// The ID of the setting for the initial window of streams.
const INITIAL_WINDOW_SIZE: u32 = 7;

/// Status codes of RST_STREAM.
pub mod status {
    /// The peer violated the protocol.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// The frame is for a stream that does not exist.
    pub const INVALID_STREAM: u32 = 2;
    /// The stream is refused, and was not processed.
    pub const REFUSED_STREAM: u32 = 3;
    /// The stream is no longer needed.
    pub const CANCEL: u32 = 5;
    /// The peer exceeded a window or made it too large.
    pub const FLOW_CONTROL_ERROR: u32 = 7;
}

/// A frame. Header blocks are still compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// The new stream.
        id: u32,
        /// The associated stream; 0 for none.
        associated: u32,
        /// The priority, from 0 (highest) to 7.
        priority: u8,
        /// Whether the sender sends nothing more on the stream.
        fin: bool,
        /// Whether the receiver must not send on the stream.
        unidirectional: bool,
        /// The compressed headers.
        block: Bytes,
    },
    /// Accepts a stream.
    SynReply {
        /// The stream.
        id: u32,
        /// Whether the sender sends nothing more on the stream.
        fin: bool,
        /// The compressed headers.
        block: Bytes,
    },
    /// Ends a stream in both directions.
    RstStream {
        /// The stream.
        id: u32,
        /// The reason, see [`status`].
        status: u32,
    },
    /// Announces the sender's settings. Only the initial window is used.
    Settings {
        /// The initial window of streams, in bytes.
        initial_window: Option<u32>,
    },
    /// A ping, which the receiver sends back unchanged.
    Ping(u32),
    /// The sender accepts no new streams.
    GoAway {
        /// The last stream that the sender accepted.
        last: u32,
        /// The reason; 0 for a normal end.
        status: u32,
    },
    /// Adds headers to a stream.
    Headers {
        /// The stream.
        id: u32,
        /// Whether the sender sends nothing more on the stream.
        fin: bool,
        /// The compressed headers.
        block: Bytes,
    },
    /// Enlarges a window.
    WindowUpdate {
        /// The stream; 0 for the connection as a whole.
        id: u32,
        /// The number of bytes to add.
        delta: u32,
    },
    /// Data. A single frame on the wire may be decoded into several of these.
    Data {
        /// The stream.
        id: u32,
        /// Whether the sender sends nothing more on the stream.
        fin: bool,
        /// The data.
        data: Bytes,
    },
}

/// The bytes are not valid SPDY/3 frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The version is not supported, or the protocol is not SPDY.
    #[error("a control frame of version {0} instead of {VERSION}")]
    Version(u16),
    /// The length of a control frame is wrong for its type, or above the limit.
    #[error("a control frame of type {kind} with {length} bytes")]
    Length {
        /// The frame's type.
        kind: u16,
        /// The frame's length in bytes, without its 8-byte header.
        length: usize,
    },
    /// The frame must be for a stream, but the stream ID is 0.
    #[error("a frame of type {0} for stream 0")]
    NoStream(u16),
}

/// Decodes frames from a byte stream.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The data frame that is not complete yet.
    partial: Option<Partial>,
    /// The remaining bytes of a frame of unknown type.
    skip: usize,
}

#[derive(Debug)]
struct Partial {
    id: u32,
    fin: bool,
    left: usize,
}

// === impl Decoder ===

impl Decoder {
    /// Returns the next frame, or `None` if more bytes are needed. Data is returned as it arrives;
    /// only control frames are buffered until they are complete.
    ///
    /// # Errors
    /// [`FrameError`]; decoding cannot continue after that.
    pub fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            if self.skip > 0 {
                let length = self.skip.min(bytes.len());
                bytes.advance(length);
                self.skip -= length;
                if self.skip > 0 {
                    return Ok(None);
                }
            }
            if let Some(partial) = &mut self.partial {
                if bytes.is_empty() {
                    return Ok(None);
                }
                let length = partial.left.min(bytes.len());
                let data = bytes.split_to(length).freeze();
                partial.left -= length;
                let (id, whole) = (partial.id, partial.left == 0);
                let fin = partial.fin && whole;
                if whole {
                    self.partial = None;
                }
                return Ok(Some(Frame::Data { id, fin, data }));
            }
            if bytes.len() < HEADER {
                return Ok(None);
            }
            let mut header = &bytes[..HEADER];
            let first = header.get_u32();
            let second = header.get_u32();
            let flags = (second >> 24) as u8;
            let length = (second & 0x00ff_ffff) as usize;
            if first >> 31 == 0 {
                bytes.advance(HEADER);
                let (id, fin) = (first & MASK, flags & FIN != 0);
                if id == 0 {
                    return Err(FrameError::NoStream(0));
                }
                if length == 0 {
                    let data = Bytes::new();
                    return Ok(Some(Frame::Data { id, fin, data }));
                }
                self.partial = Some(Partial {
                    id,
                    fin,
                    left: length,
                });
                continue;
            }
            let version = (first >> 16) as u16 & !CONTROL;
            #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
            let kind = first as u16;
            if version != VERSION {
                return Err(FrameError::Version(version));
            }
            if !matches!(kind, SYN_STREAM..=SETTINGS | PING..=WINDOW_UPDATE) {
                bytes.advance(HEADER);
                self.skip = length;
                continue;
            }
            if length > LONGEST_CONTROL {
                return Err(FrameError::Length { kind, length });
            }
            if bytes.len() < HEADER + length {
                return Ok(None);
            }
            bytes.advance(HEADER);
            return control(kind, flags, bytes.split_to(length).freeze()).map(Some);
        }
    }
}

fn control(kind: u16, flags: u8, mut body: Bytes) -> Result<Frame, FrameError> {
    let length = body.len();
    let wrong = FrameError::Length { kind, length };
    let fits = match kind {
        SYN_STREAM => length >= 10,
        SYN_REPLY | HEADERS | SETTINGS => length >= 4,
        PING => length == 4,
        _ => length == 8,
    };
    if !fits {
        return Err(wrong);
    }
    let fin = flags & FIN != 0;
    if kind == SETTINGS {
        let count = body.get_u32() as usize;
        if body.len() / 8 != count || !body.len().is_multiple_of(8) {
            return Err(wrong);
        }
        let mut initial_window = None;
        for _ in 0..count {
            let (id, value) = (body.get_u32() & 0x00ff_ffff, body.get_u32());
            if id == INITIAL_WINDOW_SIZE {
                initial_window = Some(value & MASK);
            }
        }
        return Ok(Frame::Settings { initial_window });
    }
    if kind == PING {
        return Ok(Frame::Ping(body.get_u32()));
    }
    let id = body.get_u32() & MASK;
    if id == 0 && !matches!(kind, GOAWAY | WINDOW_UPDATE) {
        return Err(FrameError::NoStream(kind));
    }
    Ok(match kind {
        SYN_STREAM => {
            let associated = body.get_u32() & MASK;
            let priority = body.get_u8() >> 5;
            let _slot = body.get_u8();
            Frame::SynStream {
                id,
                associated,
                priority,
                fin,
                unidirectional: flags & UNIDIRECTIONAL != 0,
                block: body,
            }
        }
        SYN_REPLY => Frame::SynReply {
            id,
            fin,
            block: body,
        },
        HEADERS => Frame::Headers {
            id,
            fin,
            block: body,
        },
        RST_STREAM => Frame::RstStream {
            id,
            status: body.get_u32(),
        },
        GOAWAY => Frame::GoAway {
            last: id,
            status: body.get_u32(),
        },
        _ => Frame::WindowUpdate {
            id,
            delta: body.get_u32() & MASK,
        },
    })
}

// === impl Frame ===

impl Frame {
    /// Encodes the frame. For a data frame only the header is written, so that the data can be sent
    /// without copying it. Data and header blocks must be below 16 MiB.
    pub fn encode_head(&self, into: &mut BytesMut) {
        match self {
            Self::SynStream {
                id,
                associated,
                priority,
                fin,
                unidirectional,
                block,
            } => {
                let flags = (u8::from(*fin) * FIN) | (u8::from(*unidirectional) * UNIDIRECTIONAL);
                start(into, SYN_STREAM, flags, 10 + block.len());
                into.put_u32(*id);
                into.put_u32(*associated);
                into.put_u8(priority << 5);
                into.put_u8(0);
                into.put_slice(block);
            }
            Self::SynReply { id, fin, block } => with_block(into, SYN_REPLY, *id, *fin, block),
            Self::Headers { id, fin, block } => with_block(into, HEADERS, *id, *fin, block),
            Self::RstStream { id, status } => two(into, RST_STREAM, *id, *status),
            Self::GoAway { last, status } => two(into, GOAWAY, *last, *status),
            Self::WindowUpdate { id, delta } => two(into, WINDOW_UPDATE, *id, *delta),
            Self::Settings { initial_window } => {
                let count = u32::from(initial_window.is_some());
                start(into, SETTINGS, 0, 4 + 8 * count as usize);
                into.put_u32(count);
                if let Some(window) = initial_window {
                    into.put_u32(INITIAL_WINDOW_SIZE);
                    into.put_u32(*window);
                }
            }
            Self::Ping(id) => {
                start(into, PING, 0, 4);
                into.put_u32(*id);
            }
            Self::Data { id, fin, data } => {
                into.put_u32(*id);
                put_length(into, u8::from(*fin) * FIN, data.len());
            }
        }
    }
}

fn start(into: &mut BytesMut, kind: u16, flags: u8, length: usize) {
    into.put_u16(CONTROL | VERSION);
    into.put_u16(kind);
    put_length(into, flags, length);
}

fn put_length(into: &mut BytesMut, flags: u8, length: usize) {
    debug_assert!(length < 1 << 24, "a frame's length has 24 bits");
    #[expect(clippy::cast_possible_truncation, reason = "24 bits")]
    let length = length as u32;
    into.put_u32((u32::from(flags) << 24) | length);
}

fn with_block(into: &mut BytesMut, kind: u16, id: u32, fin: bool, block: &Bytes) {
    start(into, kind, u8::from(fin) * FIN, 4 + block.len());
    into.put_u32(id);
    into.put_slice(block);
}

fn two(into: &mut BytesMut, kind: u16, id: u32, second: u32) {
    start(into, kind, 0, 8);
    into.put_u32(id);
    into.put_u32(second);
}

#[cfg(test)]
mod tests;
