//! Conversions of values of a validated configuration.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use go_duration::GoDuration;

/// A count, never negative after validation.
pub(super) fn at_least_zero(count: i32) -> u32 {
    u32::try_from(count).unwrap_or_default()
}

/// A duration, never negative after validation.
pub(super) fn span(duration: GoDuration) -> Duration {
    duration.to_std().unwrap_or_default()
}

/// A duration; `None` if it is zero or negative.
pub(super) fn positive_span(duration: GoDuration) -> Option<Duration> {
    duration.to_std().filter(|duration| !duration.is_zero())
}

/// A path that does not depend on the working directory.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
