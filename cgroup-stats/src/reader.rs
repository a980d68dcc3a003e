//! Reads files of the kernel.

use std::{
    fs::File,
    io::Read as _,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, openat};

/// The read size, larger than any file that the kernel returns in one piece.
const PIECE: usize = 16 * 1024;
/// The kernel fills at least half a page with the lines of a list before it returns them: a read of
/// less was the last.
const SHORT: usize = 2048;

/// Reads cgroup files into one buffer.
#[derive(Debug, Default)]
pub struct KernelFileReader {
    buffer: Vec<u8>,
    /// The directory of the last read, opened at the second read of its files. Several files of a
    /// cgroup are read in a row, and the lookup of its long path would be a large part of the cost
    /// of each.
    directory: Option<(PathBuf, Option<OwnedFd>)>,
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
        let mut file = self.open(directory, file)?;
        self.read_from(&mut file, one_piece)
    }

    fn open(&mut self, directory: &Path, file: &str) -> Option<File> {
        let read_only = OFlags::RDONLY | OFlags::CLOEXEC;
        let last = self.directory.take();
        let Some((path, opened)) =
            last.filter(|(path, _)| path.as_os_str() == directory.as_os_str())
        else {
            let file = openat(CWD, directory.join(file), read_only, Mode::empty());
            self.directory = Some((directory.to_owned(), None));
            return file.ok().map(File::from);
        };
        if let Some(opened) = opened
            && let Ok(file) = openat(&opened, file, read_only, Mode::empty())
        {
            self.directory = Some((path, Some(opened)));
            return Some(file.into());
        }
        // It was read once so far, or was removed and made again.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, directory, flags, Mode::empty()).ok()?;
        let file = openat(&opened, file, read_only, Mode::empty());
        self.directory = Some((path, Some(opened)));
        file.ok().map(File::from)
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
            if read < SHORT || (one_piece && length < self.buffer.len()) {
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_directory_that_was_made_again_is_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let write = |directory: &Path, number: u64| {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("usage"), number.to_string()).unwrap();
        };
        write(&one, 1);
        write(&other, 2);
        let mut reader = KernelFileReader::default();
        let mut usage = |directory: &Path| reader.number(directory, "usage");
        assert_eq!((usage(&one), usage(&other)), (Some(1), Some(2)));
        fs::remove_dir_all(&other).unwrap();
        assert_eq!(usage(&other), None);
        write(&other, 3);
        assert_eq!(usage(&other), Some(3));
        fs::rename(&other, dir.path().join("third")).unwrap();
        fs::remove_file(dir.path().join("third/usage")).unwrap();
        write(&other, 4);
        assert_eq!((usage(&other), usage(&one)), (Some(4), Some(1)));
    }
}
