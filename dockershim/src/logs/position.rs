//! How far a log has come, as it is noted down.

use serde::{Deserialize, Serialize};

use super::{engine_file::SourcePosition, log_file::LogPosition, since::Since};

/// How far the conversion has come: all before `source` is before `log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub(super) source: Source,
    pub(super) log: LogPosition,
    /// Whether the container has ended and all it wrote is in the log.
    pub complete: bool,
}

/// A place in what the engine has of a container's output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Source {
    /// In its files.
    File(SourcePosition),
    /// In the stream that its API gives.
    Stream(Since),
}
