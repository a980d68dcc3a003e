//! The saved position of a log.

use serde::{Deserialize, Serialize};

use super::{engine_file::FilePosition, log_file::LogPosition, stream_position::StreamPosition};

/// The position of the conversion: everything before `source` is in the log before `log`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    pub(super) source: EnginePosition,
    pub(super) log: LogPosition,
    /// Whether the container has exited and all of its output is in the log.
    pub complete: bool,
}

impl Position {
    /// Everything before `since` in the engine's stream is in the log before `log`.
    pub(super) fn of_stream(since: StreamPosition, log: LogPosition) -> Self {
        Self {
            source: EnginePosition::Stream(since),
            log,
            complete: false,
        }
    }
}

/// A position in the engine's output of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum EnginePosition {
    /// In the engine's files.
    File(FilePosition),
    /// In the stream of the engine's API.
    Stream(StreamPosition),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoints;

    #[test]
    fn what_is_noted_down_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::<Position>::new(dir.path().into());
        let log_path = dir.path().join("0.log");
        let log = super::super::log_file::LogFile::open(&log_path).unwrap();
        let mut since = StreamPosition::default();
        for nanosecond in [1, 2_000_000_000, 1_795_000_000_123_456_789] {
            since.take(jiff::Timestamp::from_nanosecond(nanosecond).unwrap());
            let position = Position::of_stream(since.clone(), log.position());
            checkpoints.save("c", &position).unwrap();
            assert_eq!(checkpoints.load("c"), Some(position));
        }
    }
}
