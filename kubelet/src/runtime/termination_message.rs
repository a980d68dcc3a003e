//! The message that a container leaves when it ends, in a file that is mounted
//! from the pod's directory or, as a fallback, at the end of its log.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    path::{Path, PathBuf},
};

use cri_proto::runtime::v1;
use tracing::debug;

use super::labels;
use crate::repeatable::blocking;

/// Longest message, in bytes, as the API has it.
pub const MAX_MESSAGE: u64 = 4096;
/// Longest message out of a log, in bytes.
const MAX_LOG_MESSAGE: usize = 2048;
/// Most lines of a message out of a log.
const MAX_LOG_LINES: usize = 80;
/// Bytes at the end of a log in which the message is looked for: lines carry a
/// prefix of about 40 bytes.
const LOG_TAIL: u64 = (MAX_LOG_MESSAGE + MAX_LOG_LINES * 64) as u64;

/// Where the message of a container is.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Source {
    file: Option<PathBuf>,
    /// The container's log, when it is to be used.
    log: Option<PathBuf>,
}

impl Source {
    /// As the container's annotations and mounts tell.
    pub fn of(status: &v1::ContainerStatus) -> Self {
        let annotation = |name| status.annotations.get(name).map(String::as_str);
        let file = annotation(labels::CONTAINER_TERMINATION_MESSAGE_PATH).and_then(|path| {
            let mount = status.mounts.iter().find(|m| m.container_path == path)?;
            Some(PathBuf::from(&mount.host_path))
        });
        let falls_back = annotation(labels::CONTAINER_TERMINATION_MESSAGE_POLICY)
            == Some("FallbackToLogsOnError");
        let log =
            (falls_back && !status.log_path.is_empty()).then(|| PathBuf::from(&status.log_path));
        Self { file, log }
    }

    /// The message of a container that ended with `exit_code`; empty when there
    /// is none. What cannot be read is no message.
    pub async fn read(&self, exit_code: i32) -> String {
        let message = match &self.file {
            Some(file) => read(file, head).await.unwrap_or_else(|error| {
                debug!(path = %file.display(), %error, "cannot read the termination message");
                String::new()
            }),
            None => String::new(),
        };
        match &self.log {
            Some(log) if message.is_empty() && exit_code != 0 => {
                read(log, tail).await.unwrap_or_else(|error| {
                    debug!(path = %log.display(), %error, "cannot read the end of the log");
                    String::new()
                })
            }
            _ => message,
        }
    }
}

async fn read(path: &Path, how: fn(&Path) -> io::Result<String>) -> io::Result<String> {
    let path = path.to_owned();
    blocking(move || how(&path))
        .await
        .map_err(io::Error::other)?
}

fn head(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_MESSAGE)
        .read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let start = size.saturating_sub(LOG_TAIL);
    file.seek(io::SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(LOG_TAIL).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line is cut off unless the whole file was read.
    let whole = if start == 0 {
        &*text
    } else {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    };
    Ok(last_output(whole))
}

/// The end of what was written, out of lines of the CRI log format:
/// `<time> <stream> <tags> <text>`, where the tag `P` marks a line that goes on.
fn last_output(log: &str) -> String {
    let mut lines: Vec<&str> = log.lines().collect();
    lines.drain(..lines.len().saturating_sub(MAX_LOG_LINES));
    let mut message = String::new();
    for line in lines {
        let mut parts = line.splitn(4, ' ').skip(2);
        let (Some(tags), text) = (parts.next(), parts.next().unwrap_or_default()) else {
            continue;
        };
        message.push_str(text);
        if tags.split(':').next() != Some("P") {
            message.push('\n');
        }
    }
    let mut start = message.len().saturating_sub(MAX_LOG_MESSAGE);
    while !message.is_char_boundary(start) {
        start += 1;
    }
    message.split_off(start)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:00Z stdout F one\n\
                       2026-01-01T00:00:00Z stderr P tw\n\
                       2026-01-01T00:00:00Z stderr F o\n";

    fn status(file: &str, log: &str) -> v1::ContainerStatus {
        v1::ContainerStatus {
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
                host_path: file.to_owned(),
                ..Default::default()
            }],
            log_path: log.to_owned(),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn the_file_comes_first_and_the_log_only_on_error() {
        let dir = tempfile::tempdir().unwrap();
        let (file, log) = (dir.path().join("message"), dir.path().join("0.log"));
        std::fs::write(&file, "").unwrap();
        std::fs::write(&log, LOG).unwrap();
        let source = Source::of(&status(file.to_str().unwrap(), log.to_str().unwrap()));
        assert_eq!(source.read(0).await, "");
        assert_eq!(source.read(1).await, "one\ntwo\n");
        std::fs::write(&file, "x".repeat(5000)).unwrap();
        assert_eq!(source.read(1).await.len() as u64, MAX_MESSAGE);
    }

    proptest! {
        #[test]
        fn any_log_gives_a_message_within_the_limit(log in ".{0,4000}") {
            prop_assert!(last_output(&log).len() <= MAX_LOG_MESSAGE);
        }
    }
}
