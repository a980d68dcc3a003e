//! The value of an authority, as plain text or in HPACK's Huffman code.

/// The number of Huffman codes by length (RFC 7541, Appendix B). Codes of the same length are
/// consecutive numbers, so no table of codes is needed.
const CODES: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];
/// The prefix that the codes of `' '` and `'%'` share with no other code. With its last bit set,
/// they become those of `'-'` and `'.'`.
const SPACE_OR_PERCENT: (usize, u32) = (5, 0b01010);
/// The code of `'/'`. With the last bit set, it becomes that of `'3'`.
const SLASH: (usize, u32) = (6, 0b011000);
/// The code of `':'`. With the last bit set, it becomes that of `'B'`.
const COLON: (usize, u32) = (7, 0b1011100);

/// The state of an authority's processing. The authority is unchanged up to the first character
/// that is invalid in a host name. The rest is taken for a path, in which the characters with a
/// meaning in an authority are replaced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Text {
    path: bool,
    huffman: Option<Code>,
}

/// The state of a code's decoding.
#[derive(Clone, Copy, Debug, Default)]
struct Code {
    bits: u32,
    length: usize,
    /// The first code of the current length.
    first: u32,
}

// === impl Text ===

impl Text {
    pub(super) const fn new(huffman: bool) -> Self {
        const START: Code = Code {
            bits: 0,
            length: 0,
            first: 0,
        };
        Self {
            path: false,
            huffman: if huffman { Some(START) } else { None },
        }
    }

    /// Replaces the characters in the next bytes that h2 refuses.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) {
        match self.huffman {
            None => bytes.iter_mut().for_each(|byte| self.character(byte)),
            Some(mut code) => {
                for byte in bytes {
                    for bit in (0..8).rev().map(|bit| 1 << bit) {
                        code.push(*byte & bit != 0);
                        if self.is_to_change(&code) {
                            *byte |= bit;
                            code.bits |= 1;
                        }
                        if code.is_whole() {
                            code = Code::default();
                        }
                    }
                }
                self.huffman = Some(code);
            }
        }
    }

    const fn character(&mut self, byte: &mut u8) {
        let meaningless =
            byte.is_ascii_alphanumeric() || matches!(*byte, b'-' | b'.' | b'_' | b'~');
        match *byte {
            _ if meaningless => {}
            b'[' | b']' => {}
            b'!' | b'$' | b'&'..=b',' | b':' | b';' | b'=' | b'@' if !self.path => {}
            _ => {
                self.path = true;
                *byte = b'-';
            }
        }
    }

    /// Checks whether the last bit of a code must be set.
    fn is_to_change(&mut self, code: &Code) -> bool {
        let code = (code.length, code.bits);
        self.path |= code == SPACE_OR_PERCENT || code == SLASH;
        self.path && [SPACE_OR_PERCENT, SLASH, COLON].contains(&code)
    }
}

// === impl Code ===

impl Code {
    const fn push(&mut self, bit: bool) {
        let shorter = match self.length {
            0 => 0,
            length => CODES[length],
        };
        self.bits = self.bits << 1 | bit as u32;
        self.first = (self.first + shorter) << 1;
        self.length += 1;
    }

    const fn is_whole(&self) -> bool {
        self.bits - self.first < CODES[self.length]
    }
}
