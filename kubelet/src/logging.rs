//! The kubelet's log: lines on standard error.

mod json;

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, filter::Targets, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
};

use self::json::JsonLines;

/// Changes the log level; set once logging has started.
static CHANGE: OnceLock<Change> = OnceLock::new();

type Change = Box<dyn Fn(Targets) -> Result<(), reload::Error> + Send + Sync>;

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable.
    #[default]
    Text,
    /// A JSON object, as upstream.
    Json,
}

/// Why the verbosity cannot be changed.
#[derive(Debug, thiserror::Error)]
pub enum VerbosityError {
    /// This process does not log through [`init`].
    #[error("logging was not set up by the kubelet")]
    NotOurs,
    /// The log is gone.
    #[error(transparent)]
    Reload(#[from] reload::Error),
}

/// Starts logging. `verbosity` is that of `-v`: up to 3 logs changes of state, 4 and 5 also their
/// reasons, 6 and more each step. Libraries log one level less.
pub fn init(verbosity: u32, format: LogFormat) {
    let (filter, handle) = reload::Layer::new(targets(verbosity));
    let lines = match format {
        LogFormat::Text => fmt::layer()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .with_target(verbosity >= 4)
            .boxed(),
        LogFormat::Json => JsonLines::new(io::stderr).boxed(),
    }
    .with_filter(filter);
    // Fails only if another logger is installed, which stays.
    if tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .is_ok()
    {
        // Only the first call gets here.
        let _ = CHANGE.set(Box::new(move |targets| handle.reload(targets)));
    }
}

/// Changes the verbosity of a log that has started.
///
/// # Errors
/// This process logs in another way.
pub fn set_verbosity(verbosity: u32) -> Result<(), VerbosityError> {
    let change = CHANGE.get().ok_or(VerbosityError::NotOurs)?;
    Ok(change(targets(verbosity))?)
}

fn targets(verbosity: u32) -> Targets {
    let (own, libraries) = match verbosity {
        0..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    // Targets match by prefix: this covers all crates named `kubelet_*`.
    Targets::new()
        .with_default(libraries)
        .with_target("kubelet", own)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn crates_of_the_family_are_as_verbose_as_the_kubelet_itself() {
        let targets = targets(0);
        for target in ["kubelet::sync_loop", "kubelet_volume::csi", "kubelet_host"] {
            assert!(targets.would_enable(target, &Level::INFO), "{target}");
            assert!(!targets.would_enable(target, &Level::DEBUG), "{target}");
        }
        assert!(!targets.would_enable("hyper::client", &Level::INFO));
    }
}
