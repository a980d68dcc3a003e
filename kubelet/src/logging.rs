//! The kubelet's own log: lines on standard error.

use std::io::{self, IsTerminal};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

/// Starts logging. `verbosity` is that of `-v`: up to 3 tells changes of state, 4
/// and 5 why they happen, 6 and more each step. Libraries stay a level behind.
pub fn init(verbosity: u32) {
    let (own, libraries) = match verbosity {
        0..=3 => (LevelFilter::INFO, LevelFilter::WARN),
        4..=5 => (LevelFilter::DEBUG, LevelFilter::INFO),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    let targets = Targets::new()
        .with_default(libraries)
        .with_target("kubelet", own);
    let lines = fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(verbosity >= 4)
        .with_filter(targets);
    // Refused only when somebody else logs already, who then goes on.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}
