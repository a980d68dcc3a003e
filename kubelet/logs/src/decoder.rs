//! Decodes the bytes of a log file into the output for the reader.

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use tracing::debug;

use super::{
    options::LogOptions,
    record::{Format, Head, Stream, cri_head, shown_time},
};

/// The longest line that is buffered; a longer one is output in parts.
const LONGEST_LINE: usize = 256 * 1024;
/// The longest line that is buffered if its format does not allow output in parts.
const LONGEST_JSON_LINE: usize = 4 * 1024 * 1024;

/// Consumes the bytes of a file in pieces of any size and produces the output.
#[derive(Debug)]
pub struct Decoder {
    format: Option<Format>,
    /// An incomplete line.
    line: Vec<u8>,
    /// A line whose beginning was already processed.
    rest: LineRest,
    output: Output,
}

/// How the rest of a line is treated.
#[derive(Clone, Debug)]
enum LineRest {
    /// A new line begins.
    None,
    /// The rest is text of this record.
    Text(Head),
    /// The rest is skipped.
    Skip,
}

/// The output is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputFull;

impl Decoder {
    /// A decoder of one log, or of several in sequence.
    pub fn new(options: &LogOptions) -> Self {
        Self {
            format: None,
            line: Vec::new(),
            rest: LineRest::None,
            output: Output {
                timestamps: options.timestamps,
                since: options.since,
                stream: options.stream,
                left: options.limit_bytes,
                begins_line: true,
                buffer: BytesMut::new(),
            },
        }
    }

    /// Takes the output so far.
    pub fn take(&mut self) -> Bytes {
        self.output.buffer.split().freeze()
    }

    /// Size in bytes of the output not taken yet.
    pub fn held(&self) -> usize {
        self.output.buffer.len()
    }

    /// Consumes more bytes of the file.
    ///
    /// # Errors
    /// The output is complete.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), OutputFull> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (part, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if matches!(self.rest, LineRest::None) && self.line.is_empty() {
                self.line(part)?;
                continue;
            }
            self.append(part)?;
            self.end_line()?;
        }
        self.append(bytes)
    }

    /// The file, or this one of several, has ended, and with it its last line.
    ///
    /// # Errors
    /// The output is complete.
    pub fn end(&mut self) -> Result<(), OutputFull> {
        if self.line.is_empty() && matches!(self.rest, LineRest::None) {
            return Ok(());
        }
        self.end_line()
    }

    /// Another file follows, possibly in another format.
    ///
    /// # Errors
    /// The output is complete.
    pub fn next_file(&mut self) -> Result<(), OutputFull> {
        self.end()?;
        self.format = None;
        Ok(())
    }

    fn append(&mut self, part: &[u8]) -> Result<(), OutputFull> {
        match &self.rest {
            LineRest::Skip => return Ok(()),
            LineRest::Text(head) => return self.output.text(head, part),
            LineRest::None => self.line.extend_from_slice(part),
        }
        if self.line.len() > LONGEST_LINE
            && self.format != Some(Format::Json)
            && let Some((head, text)) = cri_head(&self.line)
        {
            self.output.record(&head, text)?;
            self.format = Some(Format::Cri);
            self.rest = LineRest::Text(head);
            self.line = Vec::new();
        } else if self.line.len() > LONGEST_JSON_LINE {
            debug!("skipped a log line: it is too long");
            self.rest = LineRest::Skip;
            self.line = Vec::new();
        }
        Ok(())
    }

    fn end_line(&mut self) -> Result<(), OutputFull> {
        match std::mem::replace(&mut self.rest, LineRest::None) {
            LineRest::None => {
                let mut line = std::mem::take(&mut self.line);
                let done = self.line(&line);
                line.clear();
                self.line = line;
                done
            }
            LineRest::Text(head) if !head.is_partial => self.output.text(&head, b"\n"),
            LineRest::Text(_) | LineRest::Skip => Ok(()),
        }
    }

    /// Processes a complete line.
    fn line(&mut self, line: &[u8]) -> Result<(), OutputFull> {
        if self.format.is_none() {
            self.format = Format::of(line);
        }
        match self.format.and_then(|format| format.parse(line)) {
            Some(record) => self.output.record(&record.head, &record.text),
            None => {
                debug!(
                    line = %String::from_utf8_lossy(line.get(..200).unwrap_or(line)),
                    "skipped a log line: unknown format"
                );
                Ok(())
            }
        }
    }
}

/// Selects and formats the records to output.
#[derive(Debug)]
struct Output {
    timestamps: bool,
    since: Option<Timestamp>,
    stream: Option<Stream>,
    /// Remaining bytes of the limit.
    left: Option<u64>,
    /// Whether the next text starts a line.
    begins_line: bool,
    buffer: BytesMut,
}

impl Output {
    /// Outputs a record, or its beginning.
    fn record(&mut self, head: &Head, text: &[u8]) -> Result<(), OutputFull> {
        if self.is_wanted(head) && self.timestamps && self.begins_line {
            self.put(shown_time(&head.written_at).as_bytes())?;
            self.put(b" ")?;
        }
        self.text(head, text)
    }

    /// Outputs more text of the current record.
    fn text(&mut self, head: &Head, text: &[u8]) -> Result<(), OutputFull> {
        if !self.is_wanted(head) {
            return Ok(());
        }
        if let Some(last) = text.last() {
            self.begins_line = *last == b'\n';
        }
        self.put(text)
    }

    fn is_wanted(&self, head: &Head) -> bool {
        self.stream.is_none_or(|stream| stream == head.stream)
            && self.since.is_none_or(|since| head.at >= since)
    }

    fn put(&mut self, text: &[u8]) -> Result<(), OutputFull> {
        let Some(left) = &mut self.left else {
            self.buffer.extend_from_slice(text);
            return Ok(());
        };
        let fitting = usize::try_from(*left).unwrap_or(usize::MAX).min(text.len());
        self.buffer.extend_from_slice(&text[..fitting]);
        *left -= fitting as u64;
        if *left == 0 { Err(OutputFull) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: &str = "2016-10-20T18:39:20.5Z";

    fn shown(file: &[u8], options: &LogOptions) -> String {
        let mut decoder = Decoder::new(options);
        let _ = decoder.push(file).and_then(|()| decoder.end());
        String::from_utf8_lossy(&decoder.take()).into_owned()
    }

    fn file() -> String {
        format!(
            "{AT} stdout F one\n{AT} stdout P tw\n{AT} stdout F o\n\
             2016-10-20T18:39:21Z stderr F three\n"
        )
    }

    #[test]
    fn options_decide_what_is_shown() {
        let all = LogOptions::default();
        assert_eq!(shown(file().as_bytes(), &all), "one\ntwo\nthree\n");
        let timestamps = LogOptions {
            timestamps: true,
            ..all.clone()
        };
        assert_eq!(
            shown(file().as_bytes(), &timestamps),
            "2016-10-20T18:39:20.500000000Z one\n2016-10-20T18:39:20.500000000Z two\n\
             2016-10-20T18:39:21.000000000Z three\n"
        );
        let limited = LogOptions {
            limit_bytes: Some(6),
            ..all.clone()
        };
        assert_eq!(shown(file().as_bytes(), &limited), "one\ntw");
        let since = LogOptions {
            since: "2016-10-20T18:39:21Z".parse().ok(),
            ..all.clone()
        };
        assert_eq!(shown(file().as_bytes(), &since), "three\n");
        let stdout = LogOptions {
            stream: Some(Stream::Stdout),
            ..all
        };
        assert_eq!(shown(file().as_bytes(), &stdout), "one\ntwo\n");
    }

    #[test]
    fn what_is_broken_is_skipped() {
        let all = LogOptions::default();
        let file = format!("garbage\n{AT} stdout F a\nmore\n\n{AT} stdout F b");
        assert_eq!(shown(file.as_bytes(), &all), "a\nb\n");
    }

    #[test]
    fn a_line_is_shown_when_it_has_ended() {
        let mut decoder = Decoder::new(&LogOptions::default());
        decoder.push(format!("{AT} stdout F o").as_bytes()).unwrap();
        assert_eq!(decoder.held(), 0);
        decoder.push(b"ne\n").unwrap();
        assert_eq!(decoder.held(), 4);
        assert_eq!(&decoder.take()[..], b"one\n");
        assert_eq!(decoder.held(), 0);
    }

    #[test]
    fn the_next_file_may_be_of_another_format() {
        let mut decoder = Decoder::new(&LogOptions::default());
        decoder
            .push(format!("{AT} stdout F one").as_bytes())
            .unwrap();
        decoder.next_file().unwrap();
        let json = format!("{{\"log\":\"two\\n\",\"stream\":\"stdout\",\"time\":\"{AT}\"}}\n");
        decoder.push(json.as_bytes()).unwrap();
        assert_eq!(&decoder.take()[..], b"one\ntwo\n");
    }

    #[test]
    fn a_huge_part_of_a_line_does_not_end_it() {
        let part = "x".repeat(2 * LONGEST_LINE);
        let mut decoder = Decoder::new(&LogOptions::default());
        decoder
            .push(format!("{AT} stdout P {part}").as_bytes())
            .unwrap();
        decoder
            .push(format!("\n{AT} stdout F end\n").as_bytes())
            .unwrap();
        assert_eq!(decoder.take(), format!("{part}end\n"));
    }

    #[test]
    fn a_huge_line_is_shown_without_being_held() {
        let text = "x".repeat(LONGEST_LINE);
        let mut decoder = Decoder::new(&LogOptions::default());
        decoder.push(format!("{AT} stdout F ").as_bytes()).unwrap();
        let mut shown = 0;
        for _ in 0..8 {
            decoder.push(text.as_bytes()).unwrap();
            shown += decoder.take().len();
            assert!(decoder.line.capacity() <= 4 * LONGEST_LINE);
        }
        decoder.push(b"y\n").unwrap();
        shown += decoder.take().len();
        assert_eq!(shown, 8 * LONGEST_LINE + 2);
        decoder
            .push(format!("{AT} stdout F next\n").as_bytes())
            .unwrap();
        assert_eq!(&decoder.take()[..], b"next\n");
    }

    #[test]
    fn a_json_line_that_is_too_long_is_skipped_without_being_held() {
        let line = |text: &str| {
            format!("{{\"log\":\"{text}\\n\",\"stream\":\"stdout\",\"time\":\"{AT}\"}}\n")
        };
        let mut decoder = Decoder::new(&LogOptions::default());
        let mut push = |bytes: &[u8]| {
            for part in bytes.chunks(LONGEST_LINE) {
                decoder.push(part).unwrap();
                assert!(decoder.line.capacity() <= 3 * LONGEST_JSON_LINE);
            }
            decoder.take()
        };
        assert_eq!(&push(line("first").as_bytes())[..], b"first\n");
        // One that is not too long is shown, though it is held for that.
        let long = "x".repeat(LONGEST_JSON_LINE - 100);
        assert_eq!(push(line(&long).as_bytes()).len(), long.len() + 1);
        let too_long = "x".repeat(4 * LONGEST_JSON_LINE);
        assert_eq!(&push(line(&too_long).as_bytes())[..], b"");
        assert_eq!(&push(line("next").as_bytes())[..], b"next\n");
        // In the middle of a line, text that looks like a record is not one.
        assert_eq!(
            &push(&vec![b'x'; LONGEST_JSON_LINE + LONGEST_LINE])[..],
            b""
        );
        assert_eq!(&push(line("inside").as_bytes())[..], b"");
    }

    prop_compose! {
        fn record()(
            text in "[^\n\r]{0,40}",
            is_partial in any::<bool>(),
            stderr in any::<bool>(),
        ) -> (String, bool, bool) {
            (text, is_partial, stderr)
        }
    }

    proptest! {
        #[test]
        fn how_a_file_is_cut_does_not_matter(
            records in prop::collection::vec(record(), 0..20),
            json in any::<bool>(),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            timestamps in any::<bool>(),
            limit_bytes in prop::option::of(1..200_u64),
        ) {
            let mut file = Vec::new();
            let mut text = String::new();
            for (part, is_partial, stderr) in &records {
                let stream = if *stderr { "stderr" } else { "stdout" };
                let end = if *is_partial { "" } else { "\n" };
                let line = if json {
                    serde_json::json!({"log": format!("{part}{end}"), "stream": stream, "time": AT})
                        .to_string()
                } else {
                    let tag = if *is_partial { "P" } else { "F" };
                    format!("{AT} {stream} {tag} {part}")
                };
                file.extend_from_slice(line.as_bytes());
                file.push(b'\n');
                text += part;
                text += end;
            }
            let options = LogOptions { timestamps, limit_bytes, ..LogOptions::default() };
            let whole = shown(&file, &options);
            if !timestamps && limit_bytes.is_none() {
                prop_assert_eq!(&whole, &text);
            }
            if let Some(limit) = limit_bytes {
                prop_assert!(whole.len() as u64 <= limit + 3, "lossy text may be longer");
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(file.len() + 1)).collect();
            cuts.push(0);
            cuts.push(file.len());
            cuts.sort_unstable();
            let mut decoder = Decoder::new(&options);
            let mut bytes = Vec::new();
            for part in cuts.windows(2) {
                let full = decoder.push(&file[part[0]..part[1]]);
                bytes.extend_from_slice(&decoder.take());
                if full.is_err() {
                    break;
                }
            }
            prop_assert_eq!(String::from_utf8_lossy(&bytes).into_owned(), whole);
        }
    }
}
