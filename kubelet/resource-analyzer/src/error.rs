//! Errors of measurements.

use std::{
    io,
    path::{Path, PathBuf},
};

use kubelet_volume::VolumeError;
use tokio::task::JoinError;

/// Why something could not be measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeasureError {
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The driver of the volume reported no usage.
    #[error(transparent)]
    Driver(#[from] VolumeError),
    /// The measurement panicked.
    #[error(transparent)]
    Panicked(#[from] JoinError),
}

impl MeasureError {
    pub(crate) fn io(what: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io {
            what,
            path: path.to_owned(),
            source: source.into(),
        }
    }
}
