//! Reads the kernel's log.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek as _, SeekFrom},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::Path,
};

use rustix::{fs::OFlags, io::Errno};

use crate::oom_parser::{OomKill, OomParser};

/// The longest record that the kernel returns.
const LONGEST_RECORD: usize = 8 * 1024;
/// How many records one call reads, so that a flood of records cannot block the caller. About twice
/// as many as the kernel keeps by default.
const RECORDS: usize = 16 * 1024;

/// The kernel's log. Reading never blocks.
#[derive(Debug)]
pub struct KernelLog {
    file: File,
    parser: OomParser,
}

/// How far a call of [`KernelLog::read`] came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is no further record now.
    Drained,
    /// There may be further records.
    Pending,
    /// There will be no further record: this is not the kernel's device.
    Ended,
}

impl KernelLog {
    /// Opens the log at its oldest record.
    ///
    /// # Errors
    /// The process may not read the log, or it does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)?;
        Ok(Self {
            file,
            parser: OomParser::default(),
        })
    }

    /// Opens the log behind its newest record.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_at_end(path: &Path) -> io::Result<Self> {
        let mut log = Self::open(path)?;
        match log.file.seek(SeekFrom::End(0)) {
            // A pipe has no past.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SPIPE) => {}
            sought => {
                sought?;
            }
        }
        Ok(log)
    }

    /// Reads new records and calls `each` with every OOM kill. Records that were overwritten before
    /// they were read are skipped.
    ///
    /// # Errors
    /// The log cannot be read any further.
    pub fn read(&mut self, each: impl FnMut(OomKill<'_>)) -> io::Result<Progress> {
        read(&mut self.file, &mut self.parser, each)
    }
}

impl AsFd for KernelLog {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn read(
    records: &mut impl Read,
    parser: &mut OomParser,
    mut each: impl FnMut(OomKill<'_>),
) -> io::Result<Progress> {
    let mut record = [0; LONGEST_RECORD];
    for _ in 0..RECORDS {
        let length = match records.read(&mut record) {
            Ok(0) => return Ok(Progress::Ended),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(Progress::Drained);
            }
            Err(error) => match Errno::from_io_error(&error) {
                // Records were overwritten; the next read returns the oldest one left.
                Some(Errno::PIPE | Errno::INTR) => continue,
                _ => return Err(error),
            },
        };
        let text = String::from_utf8_lossy(&record[..length]);
        // The kernel escapes line ends in messages; its further lines begin with a space.
        for line in text.lines() {
            if let Some(kill) = parser.kill(line) {
                each(kill);
            }
        }
    }
    Ok(Progress::Pending)
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, fs, io::Write as _};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(64)
    }

    fn record(digit: char) -> String {
        let id = id(digit);
        format!(
            "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={id},\
             mems_allowed=0,oom_memcg=/docker/{id},task_memcg=/docker/{id},task=tail,pid=7,uid=0\n"
        )
    }

    fn containers(log: &mut KernelLog) -> (Progress, Vec<String>) {
        let mut found = Vec::new();
        let progress = log.read(|kill| found.extend(container(kill))).unwrap();
        (progress, found)
    }

    fn container(kill: OomKill<'_>) -> Option<String> {
        match kill {
            OomKill::Container(id) => Some(id.to_owned()),
            OomKill::Node { .. } => None,
        }
    }

    /// The device: one record or error per read, nothing after the last.
    struct Device(VecDeque<Result<String, Errno>>);

    impl Read for Device {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let record = self.0.pop_front().unwrap_or(Err(Errno::AGAIN))?;
            buffer[..record.len()].copy_from_slice(record.as_bytes());
            Ok(record.len())
        }
    }

    #[test]
    fn overwritten_records_are_skipped() {
        let mut device = Device(
            [
                Err(Errno::PIPE),
                Ok(record('a')),
                Err(Errno::INTR),
                Err(Errno::PIPE),
                Ok(record('b')),
            ]
            .into(),
        );
        let mut found = Vec::new();
        let each = |kill: OomKill<'_>| found.extend(container(kill));
        let progress = read(&mut device, &mut OomParser::default(), each).unwrap();
        assert_eq!(
            (progress, found),
            (Progress::Drained, vec![id('a'), id('b')])
        );
    }

    #[test]
    fn a_flood_is_read_in_parts() {
        let records = (0..=RECORDS).map(|_| Ok("6,1,2,-;docker0: port 1\n".to_owned()));
        let mut device = Device(records.collect());
        let mut parser = OomParser::default();
        let mut part = || read(&mut device, &mut parser, |_| {}).unwrap();
        assert_eq!(part(), Progress::Pending);
        assert_eq!(part(), Progress::Drained);
    }

    #[test]
    fn reading_does_not_wait_for_records() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let mut log = KernelLog::open_at_end(&path).unwrap();
        let mut kernel = OpenOptions::new().write(true).open(&path).unwrap();
        for _ in 0..2 {
            assert_eq!(containers(&mut log), (Progress::Drained, vec![]));
            kernel.write_all(record('a').as_bytes()).unwrap();
            assert_eq!(containers(&mut log), (Progress::Drained, vec![id('a')]));
        }
        drop(kernel);
        assert_eq!(containers(&mut log), (Progress::Ended, vec![]));
    }

    #[test]
    fn each_record_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        fs::write(
            &path,
            [&record('a'), " SUBSYSTEM=net\n", &record('b')].concat(),
        )
        .unwrap();
        let mut at_end = KernelLog::open_at_end(&path).unwrap();
        assert_eq!(containers(&mut at_end).1, [] as [String; 0]);
        let mut log = KernelLog::open(&path).unwrap();
        assert_eq!(containers(&mut log).1, [id('a'), id('b')]);
        assert_eq!(containers(&mut log).1, [] as [String; 0]);
    }

    #[test]
    fn an_unreadable_log_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(KernelLog::open(&dir.path().join("kmsg")).is_err());
        let mut directory = KernelLog::open(dir.path()).unwrap();
        assert!(directory.read(|_| {}).is_err());
    }
}
