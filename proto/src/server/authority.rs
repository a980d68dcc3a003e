//! Replaces the `:authority` of each request by a value that h2 accepts, in the bytes of the
//! connection.
//!
//! HPACK keeps the same table of headers at both ends, with a size in bytes. So this module does
//! not decode and re-encode the headers: it replaces bytes of a value by the same number of bytes
//! that decode to the same number of characters. Frame lengths and table sizes stay the same, no
//! bytes are held back, and bytes that are not understood pass unchanged, so that h2 refuses them.
//!
//! The header's name is recognized by its index in HPACK's static table or as a literal. No encoder
//! in use takes it from the dynamic table.

/// Converts the length of a part, which is at most the 32-bit length of its string.
fn number(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
mod text;

use text::Text;

/// The length of the connection preface.
const PREFACE: usize = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// The length of a frame header: the frame's length, type, flags and stream ID.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The length of the priority in a HEADERS frame.
const PRIORITY_LENGTH: usize = 5;

/// The index of `:authority` in HPACK's static table, where its value is empty.
const AUTHORITY: u32 = 1;
/// The field of that index alone, and the field of another header with an empty value, which the
/// servers do not use.
const EMPTY_AUTHORITY: u8 = 0x80 | 1;
const EMPTY_ACCEPT_CHARSET: u8 = 0x80 | 15;
const NAME: &[u8] = b":authority";
const NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The `:authority` headers on a connection, from its first byte on.
#[derive(Debug, Default)]
pub(super) struct Authorities {
    at: At,
    /// The position in a request's headers, which may continue in the next frame.
    field: Field,
}

/// The position in a connection.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Skipping this many bytes.
    Other(usize),
    /// Reading a frame header: the bytes so far, and their number.
    Head([u8; HEAD], usize),
    /// Reading the padding length of a HEADERS frame.
    PadLength { left: usize, priority: usize },
    /// Skipping the priority of a HEADERS frame.
    Priority { skip: usize, headers: Headers },
    /// Reading a request's headers.
    Headers(Headers),
    /// Passing on the rest of the connection, which is not valid HTTP/2.
    Lost,
}

/// The remaining bytes of headers and padding in a frame.
#[derive(Clone, Copy, Debug)]
struct Headers {
    left: usize,
    padding: usize,
}

/// The position in a request's headers.
#[derive(Clone, Copy, Debug, Default)]
enum Field {
    #[default]
    Start,
    /// Reading a number that continues after its first byte.
    Number { of: Number, value: u32, shift: u32 },
    /// Reading the length of a name or value.
    Length(String),
    /// Reading a name. `authority` is true while it matches `:authority`.
    Name {
        left: u32,
        huffman: bool,
        authority: bool,
    },
    /// Reading the value of `:authority`.
    Authority { left: u32, text: Text },
    /// Skipping the value of another header.
    Value { left: u32 },
    /// Passing on the rest of the headers, which is not valid HPACK.
    Lost,
}

/// The meaning of a number.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// A number that is not needed.
    Other,
    /// The index of a literal field's name; 0 if the name is a literal as well.
    NameIndex,
    Length {
        of: String,
        huffman: bool,
    },
}

#[derive(Clone, Copy, Debug)]
enum String {
    Name,
    Value { authority: bool },
}

// === impl At ===

impl Default for At {
    fn default() -> Self {
        Self::Other(PREFACE)
    }
}

impl At {
    const NEXT: Self = Self::Head([0; HEAD], 0);

    const fn other(left: usize) -> Self {
        if left == 0 {
            Self::NEXT
        } else {
            Self::Other(left)
        }
    }

    /// The position in a frame with `left` remaining bytes: `skip` bytes before the headers, and
    /// `padding` bytes after them.
    fn headers(skip: usize, left: usize, padding: usize) -> Self {
        match left.checked_sub(skip + padding) {
            // The frame is too short for its contents.
            None => Self::Lost,
            Some(left) if skip == 0 => Headers { left, padding }.rest(),
            Some(left) => Self::Priority {
                skip,
                headers: Headers { left, padding },
            },
        }
    }
}

// === impl Headers ===

impl Headers {
    const fn rest(self) -> At {
        if self.left == 0 {
            At::other(self.padding)
        } else {
            At::Headers(self)
        }
    }
}

// === impl Authorities ===

impl Authorities {
    /// Processes the next bytes of the connection; replaces authorities that h2 refuses.
    pub(super) fn pass(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let (taken, at) = self.step(bytes);
            self.at = at;
            bytes = &mut bytes[taken..];
        }
    }

    /// Processes at least one byte; returns the number of processed bytes and the position after
    /// them.
    fn step(&mut self, bytes: &mut [u8]) -> (usize, At) {
        match self.at {
            At::Head(mut head, have) => {
                let taken = bytes.len().min(HEAD - have);
                head[have..have + taken].copy_from_slice(&bytes[..taken]);
                let have = have + taken;
                let at = if have < HEAD {
                    At::Head(head, have)
                } else {
                    self.frame(head)
                };
                (taken, at)
            }
            At::Other(left) => {
                let taken = left.min(bytes.len());
                (taken, At::other(left - taken))
            }
            At::PadLength { left, priority } => {
                let padding = usize::from(bytes[0]);
                (1, At::headers(priority, left, padding))
            }
            At::Priority { skip, headers } => {
                let taken = skip.min(bytes.len());
                let at = if taken == skip {
                    headers.rest()
                } else {
                    At::Priority {
                        skip: skip - taken,
                        headers,
                    }
                };
                (taken, at)
            }
            At::Headers(headers) => {
                let taken = headers.left.min(bytes.len());
                self.field = self.field.pass(&mut bytes[..taken]);
                let left = headers.left - taken;
                (taken, Headers { left, ..headers }.rest())
            }
            At::Lost => (bytes.len(), At::Lost),
        }
    }

    fn frame(&mut self, [a, b, c, kind, flags, ..]: [u8; HEAD]) -> At {
        let left = u32::from_be_bytes([0, a, b, c]) as usize;
        let (padded, priority) = (flags & PADDED != 0, flags & PRIORITY != 0);
        match kind {
            HEADERS => {
                self.field = Field::Start;
                let priority = if priority { PRIORITY_LENGTH } else { 0 };
                match left.checked_sub(1) {
                    Some(left) if padded => At::PadLength { left, priority },
                    None if padded => At::Lost,
                    _ => At::headers(priority, left, 0),
                }
            }
            CONTINUATION => At::headers(0, left, 0),
            _ => At::other(left),
        }
    }
}

// === impl Field ===

impl Field {
    /// Processes bytes; returns the position after them.
    fn pass(mut self, mut bytes: &mut [u8]) -> Self {
        while !bytes.is_empty() {
            let (taken, next) = self.step(bytes);
            self = next;
            bytes = &mut bytes[taken..];
        }
        self
    }

    /// Processes at least one byte; returns the number of processed bytes and the position after
    /// them.
    fn step(self, bytes: &mut [u8]) -> (usize, Self) {
        let part = |left: u32| bytes.len().min(left as usize);
        match self {
            Self::Start => {
                let first = &mut bytes[0];
                if *first == EMPTY_AUTHORITY {
                    *first = EMPTY_ACCEPT_CHARSET;
                }
                let (of, bits) = match first.leading_zeros() {
                    0 => (Number::Other, 7),
                    1 => (Number::NameIndex, 6),
                    2 => (Number::Other, 5),
                    _ => (Number::NameIndex, 4),
                };
                (1, of.begin(*first, bits))
            }
            Self::Number { of, value, shift } => {
                let byte = u32::from(bytes[0]);
                let more = (byte & 0x7f).checked_shl(shift).filter(|_| shift < 28);
                let next = match more.and_then(|more| value.checked_add(more)) {
                    None => Self::Lost,
                    Some(value) if byte & 0x80 == 0 => of.is(value),
                    Some(value) => Self::Number {
                        of,
                        value,
                        shift: shift + 7,
                    },
                };
                (1, next)
            }
            Self::Length(of) => {
                let huffman = bytes[0] & 0x80 != 0;
                (1, Number::Length { of, huffman }.begin(bytes[0], 7))
            }
            Self::Name {
                left,
                huffman,
                authority,
            } => {
                let name = if huffman { NAME_HUFFMAN } else { NAME };
                let taken = part(left);
                let rest = left as usize - taken;
                let expected = |at: usize| name.get(at..at + taken);
                let at = name.len().checked_sub(left as usize);
                let authority = authority && at.and_then(expected) == Some(&bytes[..taken]);
                let next = if rest == 0 {
                    Self::Length(String::Value { authority })
                } else {
                    Self::Name {
                        left: left.saturating_sub(number(taken)),
                        huffman,
                        authority,
                    }
                };
                (taken, next)
            }
            Self::Authority { left, mut text } => {
                let taken = part(left);
                text.pass(&mut bytes[..taken]);
                let left = left.saturating_sub(number(taken));
                let next = match left {
                    0 => Self::Start,
                    left => Self::Authority { left, text },
                };
                (taken, next)
            }
            Self::Value { left } => {
                let taken = part(left);
                let next = match left.saturating_sub(number(taken)) {
                    0 => Self::Start,
                    left => Self::Value { left },
                };
                (taken, next)
            }
            Self::Lost => (bytes.len(), Self::Lost),
        }
    }
}

// === impl Number ===

impl Number {
    /// The position after a number's first byte, whose lower `bits` contain the number.
    const fn begin(self, first: u8, bits: u32) -> Field {
        let most = (1 << bits) - 1;
        let value = first as u32 & most;
        if value < most {
            return self.is(value);
        }
        Field::Number {
            of: self,
            value,
            shift: 0,
        }
    }

    const fn is(self, value: u32) -> Field {
        match self {
            Self::Other => Field::Start,
            Self::NameIndex => Field::Length(match value {
                0 => String::Name,
                index => String::Value {
                    authority: index == AUTHORITY,
                },
            }),
            Self::Length {
                of: String::Name,
                huffman,
            } => {
                let name = if huffman { NAME_HUFFMAN } else { NAME };
                match value {
                    // Header names are never empty.
                    0 => Field::Lost,
                    left => Field::Name {
                        left,
                        huffman,
                        authority: left as usize == name.len(),
                    },
                }
            }
            Self::Length {
                of: String::Value { authority },
                huffman,
            } => match value {
                0 => Field::Start,
                left if authority => Field::Authority {
                    left,
                    text: Text::new(huffman),
                },
                left => Field::Value { left },
            },
        }
    }
}
