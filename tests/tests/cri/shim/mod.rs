//! `dockershim` with a real engine: each CRI call over its socket.

mod engine;
mod life;
mod requests;

use std::time::Duration;

/// The time for the live model to follow the engine.
const SOON: Duration = Duration::from_secs(25);
