//! `dockershim` with a real engine: each CRI call over its socket.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod engine;
mod life;
mod requests;

use std::time::Duration;

/// The time for the live model to follow the engine.
const SOON: Duration = Duration::from_secs(10);
