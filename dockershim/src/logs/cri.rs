//! CRI's log format: one `<time> <stream> <tag> <content>` per line. The tag is `F` for the end of
//! a line of output, and `P` for a piece that is continued.

use memchr::memchr;

const FULL: &[u8] = b" F ";
const PARTIAL: &[u8] = b" P ";

/// Appends `output` of `stream` at `time` (RFC 3339) to `log`.
pub(super) fn append(log: &mut Vec<u8>, time: &str, stream: &str, output: &[u8]) {
    match output.strip_suffix(b"\n") {
        Some(content) => append_piece(log, time, stream, content, true),
        None => append_piece(log, time, stream, output, false),
    }
}

/// Like [`append`], for output without its line feed; `ends_line` tells whether it had one.
pub(super) fn append_piece(
    log: &mut Vec<u8>,
    time: &str,
    stream: &str,
    content: &[u8],
    ends_line: bool,
) {
    let tag = if ends_line { FULL } else { PARTIAL };
    for part in [time.as_bytes(), b" ", stream.as_bytes(), tag] {
        log.extend_from_slice(part);
    }
    // A line feed inside would split the entry; the engine writes none.
    let mut rest = content;
    while let Some(at) = memchr(b'\n', rest) {
        log.extend_from_slice(&rest[..at]);
        log.push(b' ');
        rest = &rest[at + 1..];
    }
    log.extend_from_slice(rest);
    log.push(b'\n');
}

/// The timestamp of a line.
pub(super) fn time(line: &str) -> Option<jiff::Timestamp> {
    line.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let mut log = Vec::new();
        let time = "2026-01-02T03:04:05.000000006Z";
        append(&mut log, time, "stdout", b"whole\n");
        append(&mut log, time, "stderr", b"a piece");
        append(&mut log, time, "stdout", b"\r\n");
        append(&mut log, time, "stdout", b"a\n\nb");
        let text = String::from_utf8(log).unwrap();
        assert_eq!(
            text,
            format!(
                "{time} stdout F whole\n{time} stderr P a piece\n{time} stdout F \r\n\
                 {time} stdout P a  b\n"
            )
        );
        let of = super::time(text.lines().next().unwrap()).unwrap();
        assert_eq!(of.subsec_nanosecond(), 6);
    }
}
