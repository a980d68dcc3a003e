//! Reads a container's log file and follows it.

use std::{
    future::Future,
    io::{self, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use kubelet_host::repeatable::blocking;
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
    sync::mpsc,
    time::Instant,
};

use super::{decoder::Decoder, log_path::open_log, options::LogOptions, tail, watch::FileWatch};

/// Size of one read in bytes.
const BLOCK: usize = 64 * 1024;
/// Size of the chunks handed to the receiver.
const PART: usize = 64 * 1024;
/// The shortest time between checks whether the container still runs, and the longest time between
/// checks of the file without a notification.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be opened.
    #[error("failed to open log file {path:?}: {source}")]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("failed to read log file {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Why reading ended.
enum ReadEnd {
    /// Everything requested was read.
    Done,
    /// The receiver is gone.
    Gone,
    Failed(ReadError),
}

impl From<ReadError> for ReadEnd {
    fn from(error: ReadError) -> Self {
        Self::Failed(error)
    }
}

/// An open log file. Opening reports errors before the response begins.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    container_id: String,
    /// The target, if the log is a link.
    found_at: PathBuf,
    file: File,
    /// The offset at which to stop, unless the log is followed.
    until: Option<u64>,
    position: u64,
    decoder: Decoder,
    options: LogOptions,
}

impl LogReader {
    /// Opens the log of the container with this ID and finds the start of the output.
    ///
    /// # Errors
    /// The file cannot be opened or read, or belongs to another container.
    pub async fn open(
        path: &Path,
        container_id: &str,
        options: LogOptions,
    ) -> Result<Self, ReadError> {
        let opened = open(path, container_id).await;
        let (file, found_at) = opened.map_err(|source| ReadError::Open {
            path: path.to_owned(),
            source,
        })?;
        let mut reader = Self {
            path: path.to_owned(),
            container_id: container_id.to_owned(),
            found_at,
            file: file.into(),
            until: None,
            position: 0,
            decoder: Decoder::new(&options),
            options,
        };
        reader
            .seek()
            .await
            .map_err(|source| reader.failed(source))?;
        Ok(reader)
    }

    async fn seek(&mut self) -> io::Result<()> {
        let Some(lines) = self.options.tail_lines else {
            return Ok(());
        };
        let size = self.file.metadata().await?.len();
        if !self.options.follow {
            self.until = Some(size);
        }
        let file = self.file.try_clone().await?.into_std().await;
        let start = blocking(move || tail::start_of_tail(&file, size, lines)).await??;
        self.position = self.file.seek(SeekFrom::Start(start)).await?;
        Ok(())
    }

    /// Reads the log into `parts` to its end. With [`LogOptions::follow`] it continues while
    /// `is_running` says that the container may write.
    ///
    /// Ends early if the receiver is gone.
    ///
    /// # Errors
    /// The file cannot be read.
    pub async fn read<F>(
        mut self,
        parts: &mpsc::Sender<Result<Bytes, ReadError>>,
        is_running: impl Fn() -> F,
    ) where
        F: Future<Output = bool>,
    {
        let end = if self.options.follow {
            self.follow(parts, is_running).await
        } else {
            self.read_all(parts).await
        };
        let rest = self.decoder.take();
        if matches!(end, Err(ReadEnd::Gone))
            || (!rest.is_empty() && parts.send(Ok(rest)).await.is_err())
        {
            return;
        }
        if let Err(ReadEnd::Failed(error)) = end {
            // The receiver may be gone too.
            let _ = parts.send(Err(error)).await;
        }
    }

    async fn read_all(
        &mut self,
        parts: &mpsc::Sender<Result<Bytes, ReadError>>,
    ) -> Result<(), ReadEnd> {
        self.read_to_end(parts).await?;
        self.decoder.end().map_err(|_| ReadEnd::Done)
    }

    async fn follow<F>(
        &mut self,
        parts: &mpsc::Sender<Result<Bytes, ReadError>>,
        is_running: impl Fn() -> F,
    ) -> Result<(), ReadEnd>
    where
        F: Future<Output = bool>,
    {
        // Watch before reading, so that no write goes unnoticed.
        let mut watch = FileWatch::new(&self.found_at);
        let mut asked: Option<Instant> = None;
        loop {
            self.read_to_end(parts).await?;
            let replaced = self.replacement().await?;
            if let Some(file) = replaced {
                // The rest that was written before the switch to the new file.
                self.read_to_end(parts).await?;
                self.decoder.next_file().map_err(|_| ReadEnd::Done)?;
                self.file = file;
                self.position = 0;
                continue;
            }
            self.hand_on(parts).await?;
            if asked.is_none_or(|asked| asked.elapsed() >= CHECK_PERIOD) {
                asked = Some(Instant::now());
                if !is_running().await {
                    // Everything was written before the container exited.
                    self.read_to_end(parts).await?;
                    return self.decoder.end().map_err(|_| ReadEnd::Done);
                }
            }
            tokio::select! {
                biased;
                () = parts.closed() => return Err(ReadEnd::Gone),
                () = watch.changed() => {}
                () = tokio::time::sleep(CHECK_PERIOD) => {}
            }
        }
    }

    async fn read_to_end(
        &mut self,
        parts: &mpsc::Sender<Result<Bytes, ReadError>>,
    ) -> Result<(), ReadEnd> {
        let mut block = vec![0; BLOCK];
        loop {
            let wanted = match self.until {
                None => BLOCK,
                Some(until) => usize::try_from(until.saturating_sub(self.position))
                    .unwrap_or(BLOCK)
                    .min(BLOCK),
            };
            let read = self.file.read(&mut block[..wanted]).await;
            let read = read.map_err(|source| self.failed(source))?;
            if read == 0 {
                return Ok(());
            }
            self.position += read as u64;
            self.decoder
                .push(&block[..read])
                .map_err(|_| ReadEnd::Done)?;
            if self.decoder.held() >= PART {
                self.hand_on(parts).await?;
            }
        }
    }

    async fn hand_on(
        &mut self,
        parts: &mpsc::Sender<Result<Bytes, ReadError>>,
    ) -> Result<(), ReadEnd> {
        let part = self.decoder.take();
        if part.is_empty() {
            return Ok(());
        }
        parts.send(Ok(part)).await.map_err(|_| ReadEnd::Gone)
    }

    /// The file that replaced the current one. A truncated file is read from the start.
    async fn replacement(&mut self) -> Result<Option<File>, ReadEnd> {
        let failed = |source| ReadError::Read {
            path: self.path.clone(),
            source,
        };
        let here = self.file.metadata().await.map_err(failed)?;
        if here.len() < self.position {
            let start = self.file.seek(SeekFrom::Start(0)).await.map_err(failed)?;
            self.position = start;
        }
        let file = match open(&self.path, &self.container_id).await {
            Ok((file, _)) => file,
            // Renamed, and the writer has not created the new file yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error).into()),
        };
        let there = file.metadata().map_err(failed)?;
        let is_same = (here.dev(), here.ino()) == (there.dev(), there.ino());
        Ok((!is_same).then(|| file.into()))
    }

    fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Read {
            path: self.path.clone(),
            source,
        }
    }
}

async fn open(path: &Path, container_id: &str) -> io::Result<(std::fs::File, PathBuf)> {
    let (path, container_id) = (path.to_owned(), container_id.to_owned());
    let opened = blocking(move || open_log(&path, &container_id)).await;
    opened.map_err(io::Error::other).flatten()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::Write as _,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use super::*;

    const ID: &str = "0123456789abcdef";

    fn line(text: &str) -> String {
        format!("2016-10-20T18:39:20.5Z stdout F {text}\n")
    }

    fn append(path: &Path, content: &str) {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(path)
            .unwrap();
        file.write_all(content.as_bytes()).unwrap();
    }

    struct Reading {
        parts: mpsc::Receiver<Result<Bytes, ReadError>>,
        running: Arc<AtomicBool>,
        seen: String,
    }

    impl Reading {
        async fn begin(path: &Path, options: LogOptions) -> Self {
            let reader = LogReader::open(path, ID, options).await.unwrap();
            let (sender, parts) = mpsc::channel(1);
            let running = Arc::new(AtomicBool::new(true));
            let is_running = Arc::clone(&running);
            tokio::spawn(async move {
                reader
                    .read(&sender, || async { is_running.load(Ordering::Relaxed) })
                    .await;
            });
            Self {
                parts,
                running,
                seen: String::new(),
            }
        }

        async fn until(&mut self, text: &str) {
            while self.seen != text {
                assert!(text.starts_with(&self.seen), "{:?}", self.seen);
                let part = tokio::time::timeout(Duration::from_secs(20), self.parts.recv()).await;
                let part = part.expect("something in time").expect("more").unwrap();
                self.seen += std::str::from_utf8(&part).unwrap();
            }
        }

        async fn rest(mut self) -> String {
            while let Some(part) = self.parts.recv().await {
                self.seen += std::str::from_utf8(&part.unwrap()).unwrap();
            }
            self.seen
        }
    }

    fn follow() -> LogOptions {
        LogOptions {
            follow: true,
            ..LogOptions::default()
        }
    }

    #[tokio::test]
    async fn a_log_is_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        append(&path, &line(&"x".repeat(1000)).repeat(1000));
        append(&path, line("last").trim_end());
        let all = Reading::begin(&path, LogOptions::default()).await;
        let all = all.rest().await;
        assert_eq!(all.len(), 1_001_005);
        assert!(all.ends_with("x\nlast\n"));

        let tail = LogOptions {
            tail_lines: Some(1),
            ..LogOptions::default()
        };
        let tail = Reading::begin(&path, tail).await.rest().await;
        assert_eq!(tail.len(), 1006);

        let error = LogReader::open(&dir.path().join("1.log"), ID, follow()).await;
        assert!(error.unwrap_err().to_string().starts_with("failed to open"));
    }

    #[tokio::test]
    async fn what_is_written_later_is_shown_until_the_container_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        append(&path, &line("one"));
        let mut reading = Reading::begin(&path, follow()).await;
        reading.until("one\n").await;
        let (first, second) = line("two").split_at(30).to_owned_pair();
        append(&path, &first);
        tokio::time::sleep(Duration::from_millis(20)).await;
        append(&path, &second);
        reading.until("one\ntwo\n").await;
        append(&path, &line("three"));
        reading.running.store(false, Ordering::Relaxed);
        assert_eq!(reading.rest().await, "one\ntwo\nthree\n");
    }

    #[tokio::test]
    async fn a_rotated_log_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        // Engines keep the file elsewhere.
        let path = dir.path().join(format!("{ID}-json.log"));
        append(&path, &line("0"));
        let link = dir.path().join("0.log");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let mut reading = Reading::begin(&link, follow()).await;
        let mut text = "0\n".to_owned();
        for round in 1..5 {
            reading.until(&text).await;
            let old = path.with_extension(format!("log.{round}"));
            fs::rename(&path, &old).unwrap();
            append(&old, &line("late"));
            append(&path, &line(&round.to_string()));
            text += &format!("late\n{round}\n");
        }
        reading.until(&text).await;
        // As by copying and cutting off.
        fs::write(&path, "").unwrap();
        tokio::time::sleep(Duration::from_millis(1500)).await;
        append(&path, &line("again"));
        text += "again\n";
        reading.until(&text).await;
        reading.running.store(false, Ordering::Relaxed);
        assert_eq!(reading.rest().await, text);
    }

    #[tokio::test]
    async fn a_reader_ends_when_nobody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        append(&path, &line("one"));
        let reader = LogReader::open(&path, ID, follow()).await.unwrap();
        let (sender, parts) = mpsc::channel(1);
        let task = tokio::spawn(async move { reader.read(&sender, || async { true }).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(parts);
        let ended = tokio::time::timeout(Duration::from_secs(10), task).await;
        ended.unwrap().unwrap();
    }

    trait Halves {
        fn to_owned_pair(self) -> (String, String);
    }

    impl Halves for (&str, &str) {
        fn to_owned_pair(self) -> (String, String) {
            (self.0.to_owned(), self.1.to_owned())
        }
    }
}
