//! Files that somebody else names or writes: read without waiting for anybody, and up to a
//! bound.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use rustix::fs::{Mode, OFlags, open};

/// All of a regular file of `limit` bytes at most. Blocks as long as the disk does.
///
/// # Errors
/// Those of the system; `InvalidInput` for what is no regular file, and `FileTooLarge`.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // A FIFO would be waited for at the open.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        let reason = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("it is larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// [`read`] on a thread that may block.
///
/// # Errors
/// Those of [`read`].
pub async fn read_apart(path: impl AsRef<Path>, limit: u64) -> io::Result<Vec<u8>> {
    let path = path.as_ref().to_owned();
    let reading = tokio::task::spawn_blocking(move || read(&path, limit));
    reading.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::{fs, io::ErrorKind};

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_bound() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, "12345678").unwrap();
        assert_eq!(read(file.path(), 8).unwrap(), b"12345678");
        let error = read(file.path(), 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(error.to_string().contains("7 bytes"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_refused_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in [&fifo, dir.path(), Path::new("/dev/zero")] {
            let error = read(path, 8).unwrap_err();
            assert!(error.to_string().contains("no regular file"), "{error}");
        }
    }
}
