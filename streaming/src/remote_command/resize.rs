//! The resize stream: the sizes of the client's terminal, as consecutive JSON values that may be
//! split at any byte.

use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, BufReader},
    sync::mpsc,
};

use crate::TerminalSize;

/// The maximum size of an event in bytes; a usual one has about 30.
const LONGEST: usize = 1024;

#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Event {
    #[serde(rename = "Width", alias = "width")]
    width: u16,
    #[serde(rename = "Height", alias = "height")]
    height: u16,
}

/// Sends the sizes in `stream` to `sizes`, until the stream ends or contains invalid data. The rest
/// is read and discarded, so that it does not stall the client's connection.
pub(crate) async fn follow(stream: impl AsyncRead + Unpin, sizes: mpsc::Sender<TerminalSize>) {
    let mut stream = BufReader::with_capacity(LONGEST, stream);
    let mut sizes = Some(sizes);
    let mut events = Events::default();
    loop {
        let length = match stream.fill_buf().await {
            Ok([]) | Err(_) => return,
            Ok(bytes) => {
                if sizes.is_some() {
                    events.push(bytes);
                }
                bytes.len()
            }
        };
        stream.consume(length);
        while let Some(sender) = &sizes {
            match events.next() {
                Ok(Some(size)) => {
                    if sender.send(size).await.is_err() {
                        sizes = None;
                    }
                }
                Ok(None) => break,
                Err(Malformed) => {
                    tracing::debug!("invalid data in a resize stream");
                    sizes = None;
                }
            }
        }
    }
}

/// The data is not a resize event, nor the beginning of one.
#[derive(Debug, PartialEq, Eq)]
struct Malformed;

/// Received bytes that do not form a complete event yet.
#[derive(Default)]
struct Events(Vec<u8>);

impl Events {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn next(&mut self) -> Result<Option<TerminalSize>, Malformed> {
        let mut values = serde_json::Deserializer::from_slice(&self.0).into_iter::<Event>();
        let found = match values.next() {
            None => {
                self.0.clear();
                return Ok(None);
            }
            Some(Ok(event)) => event,
            Some(Err(error)) if error.is_eof() && self.0.len() <= LONGEST => return Ok(None),
            Some(Err(_)) => return Err(Malformed),
        };
        let end = values.byte_offset();
        self.0.drain(..end);
        Ok(Some(TerminalSize {
            width: found.width,
            height: found.height,
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(pieces: &[&[u8]]) -> Result<Vec<(u16, u16)>, Malformed> {
        let mut events = Events::default();
        let mut sizes = Vec::new();
        for piece in pieces {
            events.push(piece);
            while let Some(size) = events.next()? {
                sizes.push((size.width, size.height));
            }
        }
        Ok(sizes)
    }

    #[test]
    fn other_things_are_refused() {
        assert_eq!(all(&[b"{\"Width\":80,\"Height\":24}7"]), Err(Malformed));
        assert_eq!(all(&[b"{\"Width\":70000}"]), Err(Malformed));
        assert_eq!(all(&[b"{\"Width\":\"a"]), Ok(vec![]));
        assert_eq!(all(&[&[b' '; 2 * LONGEST]]), Ok(vec![]));
        assert_eq!(all(&[b"{", &[b' '; 2 * LONGEST]]), Err(Malformed));
        assert_eq!(all(&[b"{}"]), Ok(vec![(0, 0)]));
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same_sizes(
            sizes in prop::collection::vec((any::<u16>(), any::<u16>()), 0..6),
            newline in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let mut bytes = Vec::new();
            for (width, height) in &sizes {
                bytes.extend(format!("{{\"Width\":{width},\"Height\":{height}}}").into_bytes());
                if newline { bytes.push(b'\n'); }
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts {
                pieces.push(&bytes[from..cut]);
                from = cut;
            }
            pieces.push(&bytes[from..]);
            prop_assert_eq!(all(&pieces), Ok(sizes));
        }
    }
}
