//! Lines of the engine's json-file log.

use std::borrow::Cow;

use memchr::{memchr, memchr2};
use serde::Deserialize;

use super::cri;

/// An entry of the engine's log: one piece of output.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JsonLogEntry<'a> {
    /// The timestamp, in RFC 3339 with up to nine fractional digits.
    pub time: Cow<'a, str>,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// The output, without a line feed at its end.
    pub content: Cow<'a, [u8]>,
    /// Whether the output ended with a line feed; the engine splits longer lines into pieces of 16
    /// KiB.
    pub ends_line: bool,
}

#[derive(Deserialize)]
struct Json<'a> {
    #[serde(borrow, default)]
    log: Cow<'a, str>,
    #[serde(borrow)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

/// The entries of a log; `None` for an invalid line, such as one left incomplete by an engine
/// crash.
pub(super) fn entries(mut log: &[u8]) -> impl Iterator<Item = Option<JsonLogEntry<'_>>> {
    std::iter::from_fn(move || {
        let end = memchr(b'\n', log).map_or(log.len(), |end| end + 1);
        let (line, rest) = log.split_at(end);
        log = rest;
        (!line.is_empty()).then(|| parse(line))
    })
}

/// Converts a log to CRI's format. Invalid lines are omitted.
pub fn to_cri(log: &[u8]) -> Vec<u8> {
    let mut lines = Vec::new();
    for entry in entries(log).flatten() {
        entry.append_to(&mut lines);
    }
    lines
}

impl JsonLogEntry<'_> {
    /// Appends the entry to a log in CRI's format.
    pub(super) fn append_to(&self, log: &mut Vec<u8>) {
        let content = &self.content;
        cri::append_piece(log, &self.time, self.stream, content, self.ends_line);
    }
}

/// Parses a line; `None` if it is invalid.
pub(super) fn parse(line: &[u8]) -> Option<JsonLogEntry<'_>> {
    as_the_engine_writes(line).or_else(|| as_json(line))
}

/// Parses a line in the exact format that the engine writes without additional attributes. Other
/// JSON is parsed by [`as_json`], which takes more than ten times as long.
fn as_the_engine_writes(line: &[u8]) -> Option<JsonLogEntry<'_>> {
    let text = line.strip_prefix(br#"{"log":""#)?;
    let first_escape = memchr2(b'\\', b'"', text)?;
    let mut end = first_escape;
    while text.get(end) == Some(&b'\\') {
        let next = end + 2;
        end = next + memchr2(b'\\', b'"', text.get(next..)?)?;
    }
    let (text, rest) = (&text[..end], &text[end..]);
    let rest = rest.strip_prefix(br#"","stream":""#)?;
    let (stream, rest) = match rest.strip_prefix(b"stdout") {
        Some(rest) => ("stdout", rest),
        None => ("stderr", rest.strip_prefix(b"stderr")?),
    };
    let time = rest.strip_prefix(br#"","time":""#)?;
    let time = time.trim_ascii_end().strip_suffix(br#""}"#)?;
    let time = str::from_utf8(time).ok().filter(|time| is_time(time))?;
    let (content, ends_line) = match &text[first_escape..] {
        [] => (Cow::Borrowed(text), false),
        br"\n" => (Cow::Borrowed(&text[..first_escape]), true),
        _ => without_line_feed(unescaped(text)?),
    };
    Some(JsonLogEntry {
        time: Cow::Borrowed(time),
        stream,
        content,
        ends_line,
    })
}

fn as_json(line: &[u8]) -> Option<JsonLogEntry<'_>> {
    let json: Json<'_> = serde_json::from_slice(line).ok()?;
    let (content, ends_line) = without_line_feed(json.log.into_owned().into_bytes());
    Some(JsonLogEntry {
        stream: match &*json.stream {
            "stdout" => "stdout",
            "stderr" => "stderr",
            _ => return None,
        },
        time: Some(json.time).filter(|time| is_time(time))?,
        content,
        ends_line,
    })
}

fn without_line_feed<'a>(mut output: Vec<u8>) -> (Cow<'a, [u8]>, bool) {
    let ends_line = output.pop_if(|last| *last == b'\n').is_some();
    (Cow::Owned(output), ends_line)
}

/// Decodes a JSON string's escapes; `None` for escapes that the engine does not write.
fn unescaped(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut plain = Vec::with_capacity(text.len());
    while let Some(at) = memchr(b'\\', text) {
        plain.extend_from_slice(&text[..at]);
        let (escaped, rest) = text[at + 1..].split_first()?;
        text = rest;
        plain.push(match escaped {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'"' | b'\\' | b'/' => *escaped,
            b'u' => {
                let (digits, rest) = text.split_at_checked(4)?;
                text = rest;
                let mut code = 0;
                for digit in digits {
                    code = code * 16 + char::from(*digit).to_digit(16)?;
                }
                let character = char::from_u32(code)?;
                plain.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            _ => return None,
        });
    }
    plain.extend_from_slice(text);
    Some(plain)
}

/// Whether a text looks like a timestamp, as it precedes content that other programs parse.
fn is_time(text: &str) -> bool {
    let is_part = |byte: u8| matches!(byte, b'0'..=b'9' | b'T' | b':' | b'.' | b'Z' | b'+' | b'-');
    (20..=35).contains(&text.len()) && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TIME: &str = "2026-01-02T03:04:05.6Z";

    /// A line as the engine writes it: Go escapes HTML characters and invalid UTF-8.
    fn line(output: &str, stream: &str) -> String {
        let text = serde_json::json!(output).to_string();
        let text = text
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026")
            .replace('\u{fffd}', "\\ufffd");
        format!("{{\"log\":{text},\"stream\":\"{stream}\",\"time\":\"{TIME}\"}}\n")
    }

    #[test]
    fn lines_of_the_engine() {
        let line = br#"{"log":"a\u003cb \"c\"\n","stream":"stderr","attrs":{"k":"v"},"time":"2026-01-02T03:04:05.6Z"}"#;
        let entry = parse(line).unwrap();
        assert_eq!(&*entry.content, b"a<b \"c\"");
        assert!(entry.ends_line);
        assert_eq!((entry.stream, &*entry.time), ("stderr", TIME));
        for torn in [&line[..20], b"", b"\0\0\0", b"{}"] {
            assert_eq!(parse(torn), None);
        }
        for (time, stream) in [
            ("now", "stdout"),
            ("2026-01-02 03:04:05Z", "stdout"),
            (TIME, "x"),
        ] {
            let line = format!(r#"{{"log":"a\n","stream":"{stream}","time":"{time}"}}"#);
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn a_backslash_before_an_n_is_no_line_feed() {
        for output in ["a\\n", "\\\n", "\\", "\n", "", "\\\\n", "\"\\\"", "\n\n"] {
            let line = line(output, "stdout");
            let entry = as_the_engine_writes(line.as_bytes()).unwrap();
            let mut found = entry.content.into_owned();
            if entry.ends_line {
                found.push(b'\n');
            }
            assert_eq!(found, output.as_bytes(), "{line}");
        }
    }

    /// Output with many characters that need escapes.
    fn output() -> impl Strategy<Value = String> {
        let part = prop_oneof![
            ".{0,8}",
            Just("\\".to_owned()),
            Just("\"".to_owned()),
            Just("\n".to_owned()),
            Just("n".to_owned()),
            Just("<&>".to_owned()),
            "[\u{0}-\u{1f}\u{7f}-\u{a0}\u{2028}\u{fffd}\u{1f600}]{1,3}",
        ];
        prop::collection::vec(part, 0..8).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_the_engine_writes_is_read_as_any_json(output in output(), stderr: bool) {
            let line = line(&output, if stderr { "stderr" } else { "stdout" });
            let entry = as_the_engine_writes(line.as_bytes());
            prop_assert_eq!(&entry, &as_json(line.as_bytes()));
            let entry = entry.unwrap();
            let end: &[u8] = if entry.ends_line { b"\n" } else { b"" };
            prop_assert_eq!([&*entry.content, end].concat(), output.as_bytes());
        }

        #[test]
        fn a_line_that_was_changed_is_read_as_any_json_or_not_at_all(
            output in output(),
            at: prop::sample::Index,
            byte in 0x20_u8..0x7f,
            remove: bool,
        ) {
            let mut line = line(&output, "stdout").into_bytes();
            let at = at.index(line.len() - 1);
            if remove {
                line.remove(at);
            } else {
                line[at] = byte;
            }
            if std::str::from_utf8(&line).is_ok()
                && let Some(entry) = as_the_engine_writes(&line)
            {
                prop_assert_eq!(Some(entry), as_json(&line));
            }
        }

        #[test]
        fn any_bytes_become_a_log_of_cris_format(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    output().prop_map(|output| line(&output, "stdout").into_bytes()),
                    Just(br#"{"log":""#.to_vec()),
                    Just(br#"","stream":"stdout","time":""#.to_vec()),
                    Just(b"\"}\n".to_vec()),
                ],
                0..12,
            ),
        ) {
            let json = parts.concat();
            let log = to_cri(&json);
            prop_assert_eq!(entries(&json).flatten().count(), memchr::memchr_iter(b'\n', &log).count());
            prop_assert!(log.is_empty() || log.ends_with(b"\n"));
            for line in log.split_inclusive(|byte| *byte == b'\n') {
                let fields: Vec<_> = line.splitn(4, |byte| *byte == b' ').collect();
                prop_assert_eq!(fields.len(), 4);
                prop_assert!(is_time(std::str::from_utf8(fields[0]).unwrap()));
                prop_assert!([&b"stdout"[..], b"stderr"].contains(&fields[1]));
                prop_assert!([&b"F"[..], b"P"].contains(&fields[2]));
            }
        }
    }
}
