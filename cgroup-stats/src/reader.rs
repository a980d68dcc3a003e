//! Reads files of the kernel.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The read size, larger than any file that the kernel returns in one piece.
const PIECE: usize = 16 * 1024;

/// Reads cgroup files into one buffer.
#[derive(Debug, Default)]
pub struct KernelFileReader {
    buffer: Vec<u8>,
    path: PathBuf,
}

impl KernelFileReader {
    /// The text of a file that the kernel returns in one piece, such as a number or a key table;
    /// `None` if it does not exist. Most of the time of a
    /// collection is spent in system calls, so this avoids a second read to detect the end.
    pub fn text(&mut self, directory: &Path, file: &str) -> Option<&str> {
        self.read(directory, file, true)
    }

    /// The text of a file that the kernel may return in several pieces, such as a list.
    pub fn list(&mut self, directory: &Path, file: &str) -> Option<&str> {
        self.read(directory, file, false)
    }

    fn read(&mut self, directory: &Path, file: &str, one_piece: bool) -> Option<&str> {
        self.path.clear();
        self.path.push(directory);
        self.path.push(file);
        let mut file = File::open(&self.path).ok()?;
        self.read_from(&mut file, one_piece)
    }

    /// The text of an open file that the kernel may return in several pieces.
    pub fn whole(&mut self, file: &mut File) -> Option<&str> {
        self.read_from(file, false)
    }

    fn read_from(&mut self, file: &mut File, one_piece: bool) -> Option<&str> {
        let mut length = 0;
        loop {
            if self.buffer.len() - length < PIECE {
                self.buffer.resize(length + PIECE, 0);
            }
            let read = file.read(&mut self.buffer[length..]).ok()?;
            length += read;
            if read == 0 || (one_piece && length < self.buffer.len()) {
                return std::str::from_utf8(&self.buffer[..length]).ok();
            }
        }
    }

    pub(crate) fn number(&mut self, directory: &Path, file: &str) -> Option<u64> {
        self.text(directory, file)?.trim().parse().ok()
    }

    pub(crate) fn pair(&mut self, directory: &Path, file: &str, key: &str) -> Option<u64> {
        let text = self.text(directory, file)?;
        Some(pairs(text).find(|(found, _)| *found == key)?.1)
    }
}

/// Parses lines of a key and a number.
pub(crate) fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key, value.parse().ok()?))
    })
}
