//! A line of the engine's json-file log.

use std::borrow::Cow;

use serde::Deserialize;

/// What the engine noted down of one piece of output.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The output. With a line feed at its end it ends a line; the engine cuts longer
    /// lines into pieces of 16 KiB.
    #[serde(borrow, default)]
    pub log: Cow<'a, str>,
    /// `stdout` or `stderr`.
    #[serde(borrow, default)]
    pub stream: Cow<'a, str>,
    /// When it was written, in RFC 3339 with up to nine digits of a second.
    #[serde(borrow)]
    pub time: Cow<'a, str>,
}

/// Reads a line; `None` when it is none, such as one that a crash of the engine tore.
pub fn parse(line: &[u8]) -> Option<Entry<'_>> {
    serde_json::from_slice(line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_engine() {
        let line = br#"{"log":"a\u003cb \"c\"\n","stream":"stderr","attrs":{"k":"v"},"time":"2026-01-02T03:04:05.6Z"}"#;
        let entry = parse(line).unwrap();
        assert_eq!(entry.log, "a<b \"c\"\n");
        assert_eq!(
            (&*entry.stream, &*entry.time),
            ("stderr", "2026-01-02T03:04:05.6Z")
        );
        for torn in [&line[..20], b"", b"\0\0\0", b"{}"] {
            assert_eq!(parse(torn), None);
        }
    }
}
