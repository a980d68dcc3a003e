//! The termination message of a container, from a file mounted from the pod's directory or, as a
//! fallback, from the end of its log.

use std::{
    borrow::Cow,
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
};

use cri_proto::runtime::v1;
use kubelet_cri_client::labels;
use kubelet_host::bounded_io;

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

/// Longest message in bytes, as in the API.
pub const MAX_MESSAGE: u64 = 4096;
/// Longest message from a log, in bytes.
const MAX_LOG_MESSAGE: usize = 2048;
/// Most lines of a message from a log.
const MAX_LOG_LINES: usize = 80;
/// Bytes at the end of a log that are read first. Lines have a prefix of about 40 bytes.
const LOG_TAIL: u64 = (MAX_LOG_MESSAGE + MAX_LOG_LINES * 64) as u64;
/// Most bytes of a log that are read, if lines are long.
const MAX_LOG_TAIL: u64 = 1 << 20;
/// Reason of a container that never ran and therefore has no log.
const CANNOT_RUN: &str = "ContainerCannotRun";

/// The files with the termination message of a container.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TerminationMessageSource {
    file: Option<PathBuf>,
    /// The container's log and ID, if the log may be used.
    log: Option<(PathBuf, String)>,
}

impl TerminationMessageSource {
    /// The source that follows from the container's annotations and mounts.
    pub fn of(status: &v1::ContainerStatus) -> Self {
        let annotation = |name| status.annotations.get(name).map(String::as_str);
        let file = annotation(labels::CONTAINER_TERMINATION_MESSAGE_PATH).and_then(|path| {
            let mut mounts = status.mounts.iter();
            let mount = mounts.find(|m| {
                // A relative path is relative to the root directory.
                m.container_path.trim_start_matches('/') == path.trim_start_matches('/')
            })?;
            Some(PathBuf::from(&mount.host_path))
        });
        let falls_back = annotation(labels::CONTAINER_TERMINATION_MESSAGE_POLICY)
            == Some("FallbackToLogsOnError")
            && status.exit_code != 0
            && status.reason != CANNOT_RUN;
        let log = (falls_back && !status.log_path.is_empty())
            .then(|| (PathBuf::from(&status.log_path), status.id.clone()));
        Self { file, log }
    }

    /// The message of an exited container; empty if it has none. A read error is returned as the
    /// message.
    pub async fn read(self) -> String {
        if let Some(file) = self.file {
            let read = move |file: &Path| end_of_file(open(file)?, MAX_MESSAGE);
            match reading(&file, read).await {
                Ok((bytes, _)) if bytes.is_empty() => {}
                Ok((bytes, _)) => return String::from_utf8_lossy(&bytes).into_owned(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let path = file.display();
                    return format!("Error on reading termination log {path}: {error}");
                }
            }
        }
        let Some((log, id)) = self.log else {
            return String::new();
        };
        let read = reading(&log, move |log| last_of_log(log, &id)).await;
        read.unwrap_or_else(|error| {
            format!("Error on reading termination message from logs: {error}")
        })
    }
}

/// Reads a file, which may be on a file server that the container mounts.
async fn reading<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let permit = bounded_io::MESSAGES.acquire_for(path).await?;
    let path = path.to_owned();
    permit.blocking(move || read(&path)).await?
}

fn open(path: &Path) -> io::Result<File> {
    // The container may have mounted a FIFO there; opening it would block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// The last `limit` bytes of a file, and whether they are the whole file.
fn end_of_file(mut file: File, limit: u64) -> io::Result<(Vec<u8>, bool)> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_fifo() {
        return Ok((Vec::new(), true));
    }
    let size = metadata.len();
    let start = size.saturating_sub(limit);
    file.seek(io::SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok((bytes, start == 0))
}

fn last_of_log(path: &Path, container_id: &str) -> io::Result<String> {
    let mut limit = LOG_TAIL;
    loop {
        let (log, _) = kubelet_logs::open_log(path, container_id)?;
        let (bytes, is_whole) = end_of_file(log, limit)?;
        let text = String::from_utf8_lossy(&bytes);
        let lines = if is_whole {
            &*text
        } else {
            // The first line is incomplete.
            text.split_once('\n').map_or("", |(_, rest)| rest)
        };
        let message = last_output(lines);
        let is_enough = message.len() >= MAX_LOG_MESSAGE || lines.lines().count() >= MAX_LOG_LINES;
        if is_whole || is_enough || limit >= MAX_LOG_TAIL {
            return Ok(message);
        }
        limit = (limit * 8).min(MAX_LOG_TAIL);
    }
}

/// The last output of a container, from the last lines of its log.
fn last_output(log: &str) -> String {
    let mut lines: Vec<&str> = log.lines().collect();
    lines.drain(..lines.len().saturating_sub(MAX_LOG_LINES));
    let mut message: String = lines.into_iter().filter_map(output).collect();
    let mut start = message.len().saturating_sub(MAX_LOG_MESSAGE);
    while !message.is_char_boundary(start) {
        start += 1;
    }
    message.split_off(start)
}

/// A line of a Docker log.
#[derive(Deserialize)]
struct JsonLine {
    log: String,
}

/// The output in a line of a log: `<time> <stream> <tags> <text>`, where the tag `P` marks a
/// partial line, or a JSON object.
fn output(line: &str) -> Option<Cow<'_, str>> {
    if line.starts_with('{') {
        let line: JsonLine = serde_json::from_str(line).ok()?;
        return Some(Cow::Owned(line.log));
    }
    let mut parts = line.splitn(4, ' ').skip(2);
    let (tags, text) = (parts.next()?, parts.next().unwrap_or_default());
    Some(if tags.split(':').next() == Some("P") {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(format!("{text}\n"))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rustix::fs::CWD;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:00Z stdout F one\n\
                       2026-01-01T00:00:00Z stderr P tw\n\
                       2026-01-01T00:00:00Z stderr F o\n";

    /// The message of a container that exited with `exit_code`.
    async fn message(dir: &Path, exit_code: i32, reason: &str) -> String {
        let path = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let status = v1::ContainerStatus {
            annotations: [
                (labels::CONTAINER_TERMINATION_MESSAGE_PATH, "/dev/log"),
                (
                    labels::CONTAINER_TERMINATION_MESSAGE_POLICY,
                    "FallbackToLogsOnError",
                ),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
            mounts: vec![v1::Mount {
                container_path: "/dev/log".to_owned(),
                host_path: path("message"),
                ..Default::default()
            }],
            log_path: path("0.log"),
            exit_code,
            reason: reason.to_owned(),
            ..Default::default()
        };
        TerminationMessageSource::of(&status).read().await
    }

    #[tokio::test]
    async fn a_pipe_without_a_writer_has_no_message() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, mode) = (dir.path().join("message"), Mode::RUSR | Mode::WUSR);
        rustix::fs::mknodat(CWD, pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(message(dir.path(), 0, "").await, "");
    }

    #[tokio::test]
    async fn the_file_comes_first_and_the_log_only_on_error() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&log, LOG).unwrap();
        assert_eq!(message(dir.path(), 0, "").await, "");
        assert_eq!(message(dir.path(), 1, "").await, "one\ntwo\n");
        assert_eq!(message(dir.path(), 128, CANNOT_RUN).await, "");
        std::fs::write(&file, format!("{}the end", "x".repeat(5000))).unwrap();
        let found = message(dir.path(), 1, "").await;
        assert_eq!(found.len() as u64, MAX_MESSAGE);
        assert!(found.ends_with("the end"));
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let found = message(dir.path(), 1, "").await;
        assert!(
            found.starts_with("Error on reading termination log"),
            "{found}"
        );
    }

    #[tokio::test]
    async fn lines_that_are_long_are_found_from_their_end() {
        let dir = tempfile::tempdir().unwrap();
        let long = "y".repeat(16 * 1024);
        let log = format!("{LOG}2026-01-01T00:00:00Z stdout F {long}z\n");
        std::fs::write(dir.path().join("0.log"), log).unwrap();
        let found = message(dir.path(), 1, "").await;
        assert_eq!(found.len(), MAX_LOG_MESSAGE);
        assert!(found.ends_with("yz\n"));
    }

    #[test]
    fn logs_of_docker_are_read_too() {
        let log = r#"{"log":"one\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}"#;
        assert_eq!(last_output(log), "one\n");
    }

    proptest! {
        #[test]
        fn any_log_gives_a_message_within_the_limit(log in ".{0,4000}") {
            prop_assert!(last_output(&log).len() <= MAX_LOG_MESSAGE);
        }
    }
}
