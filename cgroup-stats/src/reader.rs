//! Reads files of the kernel.

use std::{
    fs::File,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
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

/// The files of a cgroup that each collection reads, kept open: the lookup of a long path costs more
/// than reading a number. They do not keep the cgroup itself: the kernel refuses to read them once
/// it is removed.
#[derive(Debug, Default)]
pub struct HeldFiles {
    pub(crate) cpu: Option<File>,
    pub(crate) memory: Option<File>,
}

impl HeldFiles {
    /// How many files are held at most.
    pub const MOST: usize = 2;
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
        let file = self.open(directory, file)?;
        self.read_from(&file, one_piece)
    }

    /// [`text`](Self::text) of a file that stays open in `held`, if given.
    pub(crate) fn held_text(
        &mut self,
        held: Option<&mut Option<File>>,
        directory: &Path,
        file: &str,
    ) -> Option<&str> {
        let Some(held) = held else {
            return self.text(directory, file);
        };
        let again = held.as_ref().and_then(|file| self.fill(file, true));
        let length = match again.filter(|length| *length > 0) {
            Some(length) => length,
            // It was not open, or its cgroup was removed and perhaps made again.
            None => {
                *held = self.open(directory, file);
                self.fill(held.as_ref()?, true)?
            }
        };
        self.filled(length)
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
    pub fn whole(&mut self, file: &File) -> Option<&str> {
        self.read_from(file, false)
    }

    fn read_from(&mut self, file: &File, one_piece: bool) -> Option<&str> {
        let length = self.fill(file, one_piece)?;
        self.filled(length)
    }

    fn filled(&self, length: usize) -> Option<&str> {
        std::str::from_utf8(&self.buffer[..length]).ok()
    }

    /// Reads a file from its start into the buffer.
    fn fill(&mut self, file: &File, one_piece: bool) -> Option<usize> {
        let mut length = 0;
        loop {
            if self.buffer.len() - length < PIECE {
                self.buffer.resize(length + PIECE, 0);
            }
            let at = length as u64;
            let read = file.read_at(&mut self.buffer[length..], at).ok()?;
            length += read;
            if read < SHORT || (one_piece && length < self.buffer.len()) {
                return Some(length);
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

    #[test]
    fn a_held_file_is_read_again_from_its_start() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("usage");
        let mut reader = KernelFileReader::default();
        let mut held = None;
        let mut usage = || {
            let text = reader.held_text(Some(&mut held), dir.path(), "usage");
            text.map(str::to_owned)
        };
        assert_eq!(usage(), None);
        for content in ["17\n", "4\n"] {
            fs::write(&path, content).unwrap();
            assert_eq!(usage().as_deref(), Some(content));
        }
        // It is not looked up: the path has another file by now.
        let (moved, other) = (dir.path().join("moved"), "5\n");
        fs::rename(&path, &moved).unwrap();
        fs::write(&path, other).unwrap();
        assert_eq!(usage().as_deref(), Some("4\n"));
        // A file of a removed cgroup has nothing to read.
        fs::write(&moved, "").unwrap();
        assert_eq!(usage().as_deref(), Some(other));
        fs::write(&path, "").unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(usage(), None);
    }
}
