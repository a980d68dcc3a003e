//! Lines of a log file, in the CRI format and in the older json-file format.

use std::borrow::Cow;

use jiff::Timestamp;
use kubelet_pod_spec::json::from_slice;
use serde::Deserialize;

/// The stream that a container wrote to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn parse(name: &[u8]) -> Option<Self> {
        match name {
            b"stdout" => Some(Self::Stdout),
            b"stderr" => Some(Self::Stderr),
            _ => None,
        }
    }
}

/// The format of the lines of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// `2016-10-06T00:17:09.669794202Z stdout F text`.
    Cri,
    /// `{"log":"text\n","stream":"stdout","time":"2016-10-06T00:17:09.669794202Z"}`.
    Json,
}

/// The metadata of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// The time of writing.
    pub(super) at: Timestamp,
    /// The time as text, as in the file.
    pub(super) written_at: String,
    pub(super) stream: Stream,
    /// Whether the text continues in the next record of the stream.
    pub(super) is_partial: bool,
}

/// One line of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) head: Head,
    /// The text, with a newline unless it is partial.
    pub(super) text: Cow<'a, [u8]>,
}

#[derive(Deserialize)]
struct JsonLine<'a> {
    #[serde(borrow, default)]
    log: Cow<'a, str>,
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(borrow)]
    time: Cow<'a, str>,
}

impl Format {
    /// The format of a line without its newline.
    pub(super) fn of(line: &[u8]) -> Option<Self> {
        [Self::Cri, Self::Json]
            .into_iter()
            .find(|format| format.parse(line).is_some())
    }

    /// Parses a line without its newline.
    pub(super) fn parse(self, line: &[u8]) -> Option<Record<'_>> {
        match self {
            Self::Cri => {
                let (head, text) = cri_head(line)?;
                let text = if head.is_partial {
                    Cow::Borrowed(text)
                } else {
                    let mut whole = Vec::with_capacity(text.len() + 1);
                    whole.extend_from_slice(text);
                    whole.push(b'\n');
                    Cow::Owned(whole)
                };
                Some(Record { head, text })
            }
            Self::Json => json(line),
        }
    }
}

/// The head of a CRI line, and the start of its text.
pub(super) fn cri_head(line: &[u8]) -> Option<(Head, &[u8])> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let written_at = std::str::from_utf8(parts.next()?).ok()?;
    let stream = Stream::parse(parts.next()?)?;
    let tags = parts.next()?;
    // The text may be missing, but not the space before it.
    let text = parts.next()?;
    let head = Head {
        at: written_at.parse().ok()?,
        written_at: written_at.to_owned(),
        stream,
        // Further tags are reserved for later versions of the format.
        is_partial: tags.split(|byte| *byte == b':').next() == Some(b"P"),
    };
    Some((head, text))
}

fn json(line: &[u8]) -> Option<Record<'_>> {
    let line: JsonLine<'_> = from_slice(line).ok()?;
    let head = Head {
        at: line.time.parse().ok()?,
        written_at: line.time.into_owned(),
        stream: Stream::parse(line.stream.as_bytes())?,
        is_partial: !line.log.ends_with('\n'),
    };
    let text = match line.log {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    };
    Some(Record { head, text })
}

/// A time as logs show it, with nine fractional digits, so that lines align.
pub(super) fn shown_time(written: &str) -> String {
    let (seconds, rest) = match written.split_once('.') {
        Some((seconds, rest)) => (seconds, rest),
        None => {
            let zone = written.rfind(['Z', 'z', '+', '-']);
            written.split_at(zone.unwrap_or(written.len()))
        }
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (fraction, zone) = rest.split_at(digits);
    let zone = if matches!(zone, "+00:00" | "-00:00" | "z") {
        "Z"
    } else {
        zone
    };
    let fraction = fraction.get(..9).unwrap_or(fraction);
    format!("{seconds}.{fraction:0<9}{zone}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Option<(Stream, bool, String)> {
        let record = Format::of(line.as_bytes())?.parse(line.as_bytes())?;
        let text = String::from_utf8(record.text.into_owned()).unwrap();
        Some((record.head.stream, record.head.is_partial, text))
    }

    #[test]
    fn both_formats_are_read() {
        const AT: &str = "2016-10-20T18:39:20.57606443Z";
        for (line, stream, is_partial, text) in [
            (format!("{AT} stdout F a b"), Stream::Stdout, false, "a b\n"),
            (format!("{AT} stderr P a "), Stream::Stderr, true, "a "),
            (format!("{AT} stdout F "), Stream::Stdout, false, "\n"),
            (format!("{AT} stdout F:X:Y a"), Stream::Stdout, false, "a\n"),
            (format!("{AT} stdout P:X a"), Stream::Stdout, true, "a"),
            (
                "2016-10-20T18:39:20+02:00 stdout F a".to_owned(),
                Stream::Stdout,
                false,
                "a\n",
            ),
            (
                format!(r#"{{"log":"a \"b\"\n","stream":"stderr","time":"{AT}"}}"#),
                Stream::Stderr,
                false,
                "a \"b\"\n",
            ),
            (
                format!(r#"{{"log":"a","stream":"stdout","attrs":{{"t":"1"}},"time":"{AT}"}}"#),
                Stream::Stdout,
                true,
                "a",
            ),
        ] {
            let expected = (stream, is_partial, text.to_owned());
            assert_eq!(read(&line), Some(expected), "{line}");
        }
    }

    #[test]
    fn what_is_no_record_is_none() {
        for line in [
            "",
            "2016-10-20T18:39:20.57606443Z",
            "2016-10-20T18:39:20.57606443Z stdin F a",
            "2016-10-20T18:39:20.57606443Z stdout F",
            "20161020 stdout F a",
            "{\"log\":\"a\"}",
            "{\"log\":\"a\",\"stream\":\"stdout\",\"time\":\"now\"}",
        ] {
            assert_eq!(read(line), None, "{line}");
        }
    }

    #[test]
    fn times_are_shown_with_nine_digits() {
        for (written, shown) in [
            ("2016-10-20T18:39:20Z", "2016-10-20T18:39:20.000000000Z"),
            ("2016-10-20T18:39:20.5Z", "2016-10-20T18:39:20.500000000Z"),
            (
                "2016-10-20T18:39:20.123456789+02:00",
                "2016-10-20T18:39:20.123456789+02:00",
            ),
            (
                "2016-10-20T18:39:20+00:00",
                "2016-10-20T18:39:20.000000000Z",
            ),
            (
                "2016-10-20T18:39:20-07:00",
                "2016-10-20T18:39:20.000000000-07:00",
            ),
        ] {
            assert_eq!(shown_time(written), shown);
        }
    }
}
