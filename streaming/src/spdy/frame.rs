//! Frames and their bytes.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// The only version of SPDY's framing that is spoken.
const VERSION: u16 = 3;
const CONTROL: u16 = 0x8000;
/// Bytes in front of every frame.
const HEADER: usize = 8;
/// The longest control frame that is taken. Those of Kubernetes are below 1 KiB.
const LONGEST_CONTROL: usize = 32 * 1024;
/// Stream ids, and the numbers of windows, have 31 bits.
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

/// The setting that gives the window every stream begins with.
const INITIAL_WINDOW_SIZE: u32 = 7;

/// Status codes of RST_STREAM.
pub mod status {
    /// Something that SPDY does not allow.
    pub const PROTOCOL_ERROR: u32 = 1;
    /// A frame for a stream that there is not.
    pub const INVALID_STREAM: u32 = 2;
    /// A stream that is not accepted, and on which nothing was done.
    pub const REFUSED_STREAM: u32 = 3;
    /// The stream is not needed any more.
    pub const CANCEL: u32 = 5;
    /// A window was overrun or made too large.
    pub const FLOW_CONTROL_ERROR: u32 = 7;
}

/// A frame. Header blocks are compressed as they came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a stream.
    SynStream {
        /// The new stream.
        id: u32,
        /// The stream it belongs to; 0 for none.
        associated: u32,
        /// 0, the most urgent, to 7.
        priority: u8,
        /// The sender will send nothing more on the stream.
        fin: bool,
        /// The receiver must send nothing on the stream.
        unidirectional: bool,
        /// The compressed headers.
        block: Bytes,
    },
    /// Accepts a stream.
    SynReply {
        /// The stream.
        id: u32,
        /// The sender will send nothing more on the stream.
        fin: bool,
        /// The compressed headers.
        block: Bytes,
    },
    /// Ends a stream in both directions.
    RstStream {
        /// The stream.
        id: u32,
        /// Why: see [`status`].
        status: u32,
    },
    /// Tells the sender's settings; of those the only one that matters here.
    Settings {
        /// The window, in bytes, that every stream begins with.
        initial_window: Option<u32>,
    },
    /// To be sent back as it is.
    Ping(u32),
    /// The sender will take no new streams.
    GoAway {
        /// The last stream it took.
        last: u32,
        /// Why; 0 for nothing in particular.
        status: u32,
    },
    /// More headers of a stream.
    Headers {
        /// The stream.
        id: u32,
        /// The sender will send nothing more on the stream.
        fin: bool,
        /// The compressed headers.
        block: Bytes,
    },
    /// More bytes may be sent.
    WindowUpdate {
        /// The stream; 0 for the connection as a whole.
        id: u32,
        /// How many bytes more.
        delta: u32,
    },
    /// Data. One frame on the wire may come as several of these.
    Data {
        /// The stream.
        id: u32,
        /// The sender will send nothing more on the stream.
        fin: bool,
        /// The data.
        data: Bytes,
    },
}

/// Bytes that are no frames of SPDY/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Another version, or no SPDY at all.
    #[error("a control frame of version {0} instead of {VERSION}")]
    Version(u16),
    /// A control frame of a length that its type does not have.
    #[error("a control frame of type {kind} with {length} bytes")]
    Length {
        /// The frame's type.
        kind: u16,
        /// Its length in bytes, without the 8 in front.
        length: usize,
    },
    /// A frame that needs a stream names none.
    #[error("a frame of type {0} for stream 0")]
    NoStream(u16),
}

/// Takes frames off a stream of bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The data frame that is not all there yet.
    partial: Option<Partial>,
    /// Bytes left of a frame of an unknown type.
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
    /// The next frame, or `None` until more bytes are there. Data is handed on as it
    /// comes: only control frames wait until they are whole.
    ///
    /// # Errors
    /// [`FrameError`]; there is no going on after that.
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
    /// Writes the frame's bytes; of a data frame only those in front of the data, for
    /// the data to be sent from where it is. Data and blocks must be below 16 MiB.
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
    into.put_u32((u32::from(flags) << 24) | length as u32);
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
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let id = || 1..=MASK;
        prop_oneof![
            (
                id(),
                0..=MASK,
                0_u8..8,
                any::<bool>(),
                any::<bool>(),
                bytes()
            )
                .prop_map(|(id, associated, priority, fin, unidirectional, block)| {
                    Frame::SynStream {
                        id,
                        associated,
                        priority,
                        fin,
                        unidirectional,
                        block,
                    }
                }),
            (id(), any::<bool>(), bytes()).prop_map(|(id, fin, block)| Frame::SynReply {
                id,
                fin,
                block
            }),
            (id(), any::<bool>(), bytes()).prop_map(|(id, fin, block)| Frame::Headers {
                id,
                fin,
                block
            }),
            (id(), any::<u32>()).prop_map(|(id, status)| Frame::RstStream { id, status }),
            (0..=MASK, any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
            (0..=MASK, 0..=MASK).prop_map(|(id, delta)| Frame::WindowUpdate { id, delta }),
            prop::option::of(0..=MASK)
                .prop_map(|initial_window| Frame::Settings { initial_window }),
            any::<u32>().prop_map(Frame::Ping),
            (id(), any::<bool>(), bytes()).prop_map(|(id, fin, data)| Frame::Data {
                id,
                fin,
                data
            }),
        ]
    }

    fn encode(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = BytesMut::new();
        for frame in frames {
            frame.encode_head(&mut bytes);
            if let Frame::Data { data, .. } = frame {
                bytes.put_slice(data);
            }
        }
        bytes.to_vec()
    }

    /// Decodes pieces as they come in. Pieces of one data frame are put together again:
    /// they are told by the end of the frame being known from `whole`.
    fn decode(pieces: &[&[u8]]) -> Result<Vec<Frame>, FrameError> {
        let mut decoder = Decoder::default();
        let mut buffer = BytesMut::new();
        let mut frames: Vec<Frame> = Vec::new();
        let mut open = false;
        for piece in pieces {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut buffer)? {
                match (frames.last_mut(), frame) {
                    (
                        Some(Frame::Data { fin, data, .. }),
                        Frame::Data {
                            fin: f, data: d, ..
                        },
                    ) if open => {
                        *data = [&data[..], &d[..]].concat().into();
                        *fin = f;
                    }
                    (_, frame) => frames.push(frame),
                }
                open = decoder.partial.is_some();
            }
        }
        Ok(frames)
    }

    fn split<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|it| it.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|it| &bytes[it[0]..it[1]]).collect()
    }

    proptest! {
        #[test]
        fn any_split_of_the_bytes_gives_the_same_frames(
            frames in prop::collection::vec(frames(), 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let bytes = encode(&frames);
            prop_assert_eq!(decode(&split(&bytes, &cuts)), Ok(frames));
        }

        #[test]
        fn any_split_of_any_bytes_gives_the_same(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            control in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
        ) {
            let mut bytes = bytes;
            if control && bytes.len() > 8 {
                bytes[..2].copy_from_slice(&[0x80, 3]);
                bytes[2] = 0;
                bytes[3] %= 11;
                bytes[5] = 0;
                bytes[6] = 0;
            }
            prop_assert_eq!(decode(&split(&bytes, &cuts)), decode(&[&bytes]));
        }
    }

    #[test]
    fn what_is_no_frame_is_refused() {
        let error = |bytes: &[u8]| decode(&[bytes]).unwrap_err();
        assert_eq!(error(&[0x80, 2, 0, 1, 0, 0, 0, 10]), FrameError::Version(2));
        assert_eq!(
            error(&[0x80, 3, 0, 3, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0]),
            FrameError::Length { kind: 3, length: 9 }
        );
        assert_eq!(
            error(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]),
            FrameError::Length {
                kind: 1,
                length: 0xff_ffff
            }
        );
        assert_eq!(
            error(&[0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]),
            FrameError::Length { kind: 4, length: 4 }
        );
        assert_eq!(error(&[0, 0, 0, 0, 0, 0, 0, 0]), FrameError::NoStream(0));
    }

    #[test]
    fn unknown_frames_are_skipped_without_a_buffer() {
        let mut decoder = Decoder::default();
        let mut bytes = BytesMut::from(&[0x80, 3, 0, 77, 0, 0xff, 0xff, 0xff][..]);
        for _ in 0..0xff_ffff / 0x10_000 {
            bytes.put_bytes(0xaa, 0x10_000);
            assert_eq!(decoder.decode(&mut bytes), Ok(None));
            assert!(bytes.is_empty());
        }
        bytes.put_bytes(0xaa, 0xffff);
        Frame::Ping(7).encode_head(&mut bytes);
        assert_eq!(decoder.decode(&mut bytes), Ok(Some(Frame::Ping(7))));
    }
}
