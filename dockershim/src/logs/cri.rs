//! CRI's log format: `<time> <stream> <tag> <content>`, a line each. The tag is `F` for
//! the end of a line of output, `P` for a piece that others follow.

const FULL: &[u8] = b" F ";
const PARTIAL: &[u8] = b" P ";

/// Appends to `log` what was written to `stream` at `time` (RFC 3339).
pub fn append(log: &mut Vec<u8>, time: &str, stream: &str, output: &[u8]) {
    let (tag, content) = match output.strip_suffix(b"\n") {
        Some(content) => (FULL, content),
        None => (PARTIAL, output),
    };
    for part in [time.as_bytes(), b" ", stream.as_bytes(), tag] {
        log.extend_from_slice(part);
    }
    // A piece with line feeds inside would read as several; the engine writes none.
    let start = log.len();
    log.extend_from_slice(content);
    for byte in &mut log[start..] {
        if *byte == b'\n' {
            *byte = b' ';
        }
    }
    log.push(b'\n');
}

/// The time of a line.
pub fn time(line: &str) -> Option<jiff::Timestamp> {
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
        let text = String::from_utf8(log).unwrap();
        assert_eq!(
            text,
            format!("{time} stdout F whole\n{time} stderr P a piece\n{time} stdout F \r\n")
        );
        let of = super::time(text.lines().next().unwrap()).unwrap();
        assert_eq!(of.subsec_nanosecond(), 6);
    }
}
