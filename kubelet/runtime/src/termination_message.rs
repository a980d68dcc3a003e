//! The message that a container leaves when it ends, in a file that is mounted
//! from the pod's directory or, as a fallback, at the end of its log.

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

/// Longest message, in bytes, as the API has it.
pub const MAX_MESSAGE: u64 = 4096;
/// Longest message out of a log, in bytes.
const MAX_LOG_MESSAGE: usize = 2048;
/// Most lines of a message out of a log.
const MAX_LOG_LINES: usize = 80;
/// Bytes at the end of a log in which the message is looked for first: lines
/// carry a prefix of about 40 bytes.
const LOG_TAIL: u64 = (MAX_LOG_MESSAGE + MAX_LOG_LINES * 64) as u64;
/// Bytes in which it is looked for at most, where lines are long.
const MAX_LOG_TAIL: u64 = 1 << 20;
/// Reason of a container that never ran, so that it has no log.
const CANNOT_RUN: &str = "ContainerCannotRun";

/// Where the message of a container is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Source {
    file: Option<PathBuf>,
    /// The container's log, when it is to be used, and the container's id.
    log: Option<(PathBuf, String)>,
}

impl Source {
    /// As the container's annotations and mounts tell.
    pub fn of(status: &v1::ContainerStatus) -> Self {
        let annotation = |name| status.annotations.get(name).map(String::as_str);
        let file = annotation(labels::CONTAINER_TERMINATION_MESSAGE_PATH).and_then(|path| {
            let mut mounts = status.mounts.iter();
            let mount = mounts.find(|m| {
                // A path that is not absolute is one below the root.
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

    /// The message of a container that ended; empty when there is none. What
    /// cannot be read says so.
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

/// Reads a file, which a container may have on a server.
async fn reading<T: Send + 'static>(
    path: &Path,
    read: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let permit = bounded_io::MESSAGES.acquire_for(path).await?;
    let path = path.to_owned();
    permit.blocking(move || read(&path)).await?
}

fn open(path: &Path) -> io::Result<File> {
    // What a container mounts there may be a pipe, and a writer to it would be waited for.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// At most `limit` bytes at the end of a file, and whether that is all of it.
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
            // The first line is cut off.
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

/// The end of what was written, out of the last lines of a log.
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

/// What a container wrote, out of a line of its log: `<time> <stream> <tags>
/// <text>`, where the tag `P` marks a line that goes on, or a JSON object.
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

    /// The message of a container that ended with `exit_code`.
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
        Source::of(&status).read().await
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
