//! Bounded reads of files whose path or content is controlled by others: no waiting on FIFOs, and a
//! size limit.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use rustix::fs::{Mode, OFlags, open};

/// Reads a regular file of at most `limit` bytes. Blocks for disk I/O.
///
/// # Errors
/// Those of the system; `InvalidInput` if it is not a regular file, and `FileTooLarge`.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Without `NONBLOCK`, opening a FIFO would block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        let reason = "not a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let reason = format!("larger than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

/// [`read`] on the blocking thread pool.
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
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
    }
}
