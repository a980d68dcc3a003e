//! The kubelet's log: lines on standard error.

mod json;
mod verbosity;

use std::{
    io::{self, IsTerminal},
    sync::OnceLock,
};

use kubelet_traces::Export;
use tracing_subscriber::{Layer, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt};

pub use self::verbosity::ModuleVerbosity;
use self::{json::JsonLines, verbosity::Verbosity};

/// Changes the log level; set once logging has started.
static CHANGE: OnceLock<Change> = OnceLock::new();

type Change = Box<dyn Fn(u32) -> Result<(), reload::Error> + Send + Sync>;

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
/// reasons, 6 and more each step. Libraries log one level less. Single `modules` can log more.
/// `traces` get their spans, which the log leaves out.
pub fn init(
    verbosity: u32,
    modules: Vec<ModuleVerbosity>,
    format: LogFormat,
    traces: Option<&Export>,
) {
    let (filter, handle) = reload::Layer::new(Verbosity::new(verbosity, &modules));
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
        .with(traces.map(Export::layer))
        .try_init()
        .is_ok()
    {
        // Only the first call gets here.
        let change = move |verbosity| handle.reload(Verbosity::new(verbosity, &modules));
        let _ = CHANGE.set(Box::new(change));
    }
}

/// Changes the verbosity of a log that has started.
///
/// # Errors
/// This process logs in another way.
pub fn set_verbosity(verbosity: u32) -> Result<(), VerbosityError> {
    let change = CHANGE.get().ok_or(VerbosityError::NotOurs)?;
    Ok(change(verbosity)?)
}
