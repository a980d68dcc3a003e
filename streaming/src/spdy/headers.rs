//! Header blocks: names and values, compressed by zlib with SPDY's dictionary. All blocks of a
//! direction form one zlib stream, so the connection cannot continue after an invalid block.

use bytes::{Buf as _, BufMut as _, Bytes};
use flate2::{Decompress, FlushDecompress, Status};

use super::dictionary::DICTIONARY;

/// The maximum size of a decompressed block. Those of Kubernetes are below 200 bytes.
const LONGEST: usize = 64 * 1024;
const STEP: usize = 4 * 1024;
/// The header of a zlib stream with SPDY's dictionary: method, window and the flag of a preset
/// dictionary, then the dictionary's Adler-32.
const ZLIB_HEAD: [u8; 6] = [0x78, 0x20, 0xe3, 0xc6, 0xa7, 0xc2];

/// Headers: names in lower case, and their values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

/// The reason why a header block is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The block is not valid zlib data with SPDY's dictionary.
    #[error("cannot inflate a header block: {0}")]
    Zlib(String),
    /// The decompressed block is too large.
    #[error("a header block of more than {LONGEST} bytes")]
    TooLong,
    /// The lengths in the block do not match its size.
    #[error("a header block with wrong lengths")]
    Lengths,
    /// A name is empty, not in lower case, duplicate or not UTF-8.
    #[error("a header block with the invalid name {0:?}")]
    Name(String),
    /// A value is not UTF-8.
    #[error("a header block with a value that is not UTF-8 for {0:?}")]
    Value(String),
}

/// Encodes the blocks of one direction, in order. They are stored without compression: a block has
/// a few dozen bytes, and a compressor needs 200 KiB per connection. The result is a valid zlib
/// stream.
#[derive(Debug, Default)]
pub struct Deflater {
    started: bool,
}

/// Decompresses the blocks of one direction, in order.
pub struct Inflater(Decompress);

// === impl Headers ===

impl Headers {
    /// Returns the value of the header `name`, which is case-insensitive.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(is, _)| is.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.0.push((name.to_ascii_lowercase(), value.into()));
        self
    }

    /// Encodes the headers as an uncompressed block.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_length(&mut bytes, self.0.len());
        for (name, value) in &self.0 {
            for text in [name, value] {
                put_length(&mut bytes, text.len());
                bytes.put_slice(text.as_bytes());
            }
        }
        bytes
    }

    /// Decodes an uncompressed block.
    ///
    /// # Errors
    /// [`HeaderError`] if the bytes are not exactly one block.
    pub fn decode(mut block: &[u8]) -> Result<Self, HeaderError> {
        let count = take_length(&mut block)?;
        let mut headers = Vec::new();
        for _ in 0..count {
            let name = take(&mut block)?;
            let value = take(&mut block)?;
            let name = String::from_utf8(name.to_vec())
                .map_err(|error| HeaderError::Name(error.to_string()))?;
            let taken = headers.iter().any(|(other, _)| *other == name);
            if name.is_empty() || taken || name.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return Err(HeaderError::Name(name));
            }
            match String::from_utf8(value.to_vec()) {
                Ok(value) => headers.push((name, value)),
                Err(_) => return Err(HeaderError::Value(name)),
            }
        }
        if !block.is_empty() {
            return Err(HeaderError::Lengths);
        }
        Ok(Self(headers))
    }
}

fn put_length(bytes: &mut Vec<u8>, length: usize) {
    // Only own headers are encoded, and they are short.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
}

fn take_length(block: &mut &[u8]) -> Result<usize, HeaderError> {
    let length = block.try_get_u32().map_err(|_| HeaderError::Lengths)?;
    usize::try_from(length).map_err(|_| HeaderError::Lengths)
}

fn take<'a>(block: &mut &'a [u8]) -> Result<&'a [u8], HeaderError> {
    let length = take_length(block)?;
    block.split_off(..length).ok_or(HeaderError::Lengths)
}

// === impl Deflater ===

impl Deflater {
    /// Encodes `headers` as the next block of the zlib stream.
    pub fn deflate(&mut self, headers: &Headers) -> Bytes {
        let plain = headers.encode();
        let mut out = Vec::with_capacity(plain.len() + 32);
        if !self.started {
            self.started = true;
            out.put_slice(&ZLIB_HEAD);
        }
        for piece in plain.chunks(usize::from(u16::MAX)) {
            put_stored(&mut out, piece);
        }
        // An empty block, as after a compressor's flush: Go's reader withholds the last bytes
        // without it.
        put_stored(&mut out, &[]);
        out.into()
    }
}

/// Writes a stored deflate block, of at most 64 KiB.
fn put_stored(out: &mut Vec<u8>, piece: &[u8]) {
    let length = u16::try_from(piece.len()).unwrap_or(u16::MAX);
    out.put_u8(0);
    out.put_u16_le(length);
    out.put_u16_le(!length);
    out.put_slice(piece);
}

// === impl Inflater ===

impl Default for Inflater {
    fn default() -> Self {
        Self(Decompress::new(true))
    }
}

impl Inflater {
    /// Decompresses a block.
    ///
    /// # Errors
    /// [`HeaderError`]; later blocks of the direction cannot be decompressed after that.
    pub fn inflate(&mut self, block: &[u8]) -> Result<Headers, HeaderError> {
        let mut out = Vec::with_capacity(STEP.min(4 * block.len() + 64));
        let before = self.0.total_in();
        let mut done = 0;
        loop {
            let produced = out.len();
            let rest = &block[done..];
            match self.0.decompress_vec(rest, &mut out, FlushDecompress::Sync) {
                Ok(Status::StreamEnd) => {
                    return Err(HeaderError::Zlib("the stream was ended".into()));
                }
                Ok(_) => {}
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(&DICTIONARY)
                        .map_err(|error| HeaderError::Zlib(error.to_string()))?;
                }
                Err(error) => return Err(HeaderError::Zlib(error.to_string())),
            }
            let taken = usize::try_from(self.0.total_in() - before).unwrap_or(block.len());
            let stuck = out.len() == produced && taken == done;
            done = taken;
            if out.len() > LONGEST {
                return Err(HeaderError::TooLong);
            }
            if out.len() == out.capacity() {
                out.reserve(STEP);
            } else if done == block.len() {
                return Headers::decode(&out);
            } else if stuck {
                return Err(HeaderError::Zlib("no progress".into()));
            }
        }
    }
}

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflater").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Headers> {
        prop::collection::btree_map("[a-z:-]{1,20}", ".{0,40}", 0..10)
            .prop_map(|map| Headers(map.into_iter().collect()))
    }

    proptest! {
        #[test]
        fn blocks_come_back_in_their_order(blocks in prop::collection::vec(headers(), 0..10)) {
            let mut deflater = Deflater::default();
            let mut inflater = Inflater::default();
            for headers in blocks {
                let block = deflater.deflate(&headers);
                prop_assert_eq!(inflater.inflate(&block), Ok(headers));
            }
        }

        #[test]
        fn anything_may_come(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Headers::decode(&bytes);
            let _ = Inflater::default().inflate(&bytes);
        }
    }

    #[test]
    fn a_large_block_comes_back() {
        let headers = Headers::default().with("a", "x".repeat(LONGEST / 2));
        let block = Deflater::default().deflate(&headers);
        assert_eq!(Inflater::default().inflate(&block), Ok(headers));
    }

    #[test]
    fn what_a_compressor_makes_is_read() {
        let mut zlib = flate2::Compress::new(flate2::Compression::best(), true);
        zlib.set_dictionary(&DICTIONARY).unwrap();
        let mut inflater = Inflater::default();
        for port in 0..100 {
            let headers = Headers::default()
                .with("streamtype", "data")
                .with("content-type", "text/plain")
                .with("port", port.to_string());
            let mut block = Vec::with_capacity(1000);
            let flush = flate2::FlushCompress::Sync;
            zlib.compress_vec(&headers.encode(), &mut block, flush)
                .unwrap();
            assert_eq!(inflater.inflate(&block), Ok(headers));
        }
    }

    #[test]
    fn a_bomb_is_refused() {
        let headers = Headers::default().with("a", "x".repeat(64 * LONGEST));
        let mut zlib = flate2::Compress::new(flate2::Compression::best(), true);
        let mut block = Vec::with_capacity(LONGEST);
        let flush = flate2::FlushCompress::Sync;
        let plain = headers.encode();
        zlib.compress_vec(&plain, &mut block, flush).unwrap();
        assert_eq!(zlib.total_in(), plain.len() as u64);
        assert!(block.len() < LONGEST);
        assert_eq!(
            Inflater::default().inflate(&block),
            Err(HeaderError::TooLong)
        );
    }

    #[test]
    fn names_are_checked() {
        let decode = |headers: Headers| Headers::decode(&headers.encode());
        let named = |name: &str| Headers(vec![(name.to_owned(), String::new())]);
        assert_eq!(decode(named("")), Err(HeaderError::Name(String::new())));
        assert_eq!(decode(named("Port")), Err(HeaderError::Name("Port".into())));
        let twice = Headers::default().with("a", "1").with("a", "2");
        assert_eq!(decode(twice), Err(HeaderError::Name("a".into())));
        assert_eq!(Headers::decode(&[0, 0, 0, 1]), Err(HeaderError::Lengths));
        assert_eq!(Headers::decode(&[0, 0, 0, 0, 1]), Err(HeaderError::Lengths));
        assert_eq!(
            Headers::default().with("streamType", "x").get("streamtype"),
            Some("x")
        );
    }
}
