//! Finds the start of the last lines of a log file.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use super::record::{Format, cri_head};

/// Size of one read, backwards from the end.
const BLOCK: u64 = 64 * 1024;
/// The head of a CRI line is never longer.
const HEAD: usize = 128;
/// Longer json-file lines count as complete.
const LONGEST_JSON: u64 = 1024 * 1024;

/// The offset of the last `lines` lines in the first `size` bytes. Counts the lines that the
/// container wrote, which may span several records; an unfinished line does not count.
///
/// # Errors
/// The file cannot be read.
pub fn start_of_tail(file: &File, size: u64, lines: u64) -> io::Result<u64> {
    if lines == 0 {
        return Ok(size);
    }
    let mut format = None;
    let mut left = lines;
    // The end of the record whose start is searched.
    let mut end = None;
    let mut block_end = size;
    let mut buffer = Vec::new();
    while block_end > 0 {
        let block_start = block_end.saturating_sub(BLOCK);
        buffer.resize(
            usize::try_from(block_end - block_start).unwrap_or_default(),
            0,
        );
        file.read_exact_at(&mut buffer, block_start)?;
        for index in (0..buffer.len())
            .rev()
            .filter(|index| buffer[*index] == b'\n')
        {
            let newline = block_start + index as u64;
            if let Some(end) = end {
                let start = newline + 1;
                if ends_line(file, start, end, &mut format)? {
                    if left == 0 {
                        return Ok(end + 1);
                    }
                    left -= 1;
                }
            }
            end = Some(newline);
        }
        block_end = block_start;
    }
    match end {
        Some(end) if left == 0 && ends_line(file, 0, end, &mut format)? => Ok(end + 1),
        _ => Ok(0),
    }
}

/// Whether the record in `start..end` ends a line of the container.
fn ends_line(file: &File, start: u64, end: u64, format: &mut Option<Format>) -> io::Result<bool> {
    let length = usize::try_from(end - start).unwrap_or(usize::MAX);
    if *format != Some(Format::Json) {
        let head = read(file, start, length.min(HEAD))?;
        if let Some((head, _)) = cri_head(&head) {
            *format = Some(Format::Cri);
            return Ok(!head.is_partial);
        }
        if *format == Some(Format::Cri) {
            // The file is not shown at all.
            return Ok(false);
        }
    }
    if end - start > LONGEST_JSON {
        return Ok(true);
    }
    let line = read(file, start, length)?;
    let record = Format::Json.parse(&line);
    if record.is_some() {
        *format = Some(Format::Json);
    }
    Ok(record.is_some_and(|record| !record.head.is_partial))
}

fn read(file: &File, start: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, start)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn tail(content: &str, lines: u64) -> String {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content.as_bytes()).unwrap();
        let start = start_of_tail(&file, content.len() as u64, lines).unwrap();
        content[usize::try_from(start).unwrap()..].to_owned()
    }

    fn line(tag: &str, text: &str) -> String {
        format!("2016-10-20T18:39:20.5Z stdout {tag} {text}\n")
    }

    #[test]
    fn lines_are_counted_and_not_records() {
        let two = line("P", "tw") + &line("F", "o");
        let content = line("F", "one") + &two + &line("F", "three");
        assert_eq!(tail(&content, 0), "");
        assert_eq!(tail(&content, 1), line("F", "three"));
        assert_eq!(tail(&content, 2), two.clone() + &line("F", "three"));
        assert_eq!(tail(&content, 3), content);
        assert_eq!(tail(&content, 9), content);
        assert_eq!(tail("", 3), "");

        let unfinished = content.clone() + "2016";
        assert_eq!(tail(&unfinished, 1), line("F", "three") + "2016");
        let json = |log: &str| {
            serde_json::json!({"log": log, "stream": "stdout", "time": "2016-10-20T18:39:20Z"})
                .to_string()
                + "\n"
        };
        let content = json("one\n") + &json("tw") + &json("o\n");
        assert_eq!(tail(&content, 1), json("tw") + &json("o\n"));
    }

    proptest! {
        #[test]
        fn blocks_do_not_matter(
            lengths in prop::collection::vec(prop_oneof![0..100_usize, 60_000..70_000_usize], 1..6),
            lines in 1..7_u64,
        ) {
            let written: Vec<String> =
                lengths.iter().map(|length| line("F", &"x".repeat(*length))).collect();
            let skipped = written.len().saturating_sub(usize::try_from(lines).unwrap());
            prop_assert_eq!(tail(&written.concat(), lines), written[skipped..].concat());
        }
    }
}
