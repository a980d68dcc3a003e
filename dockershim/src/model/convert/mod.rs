//! What the engine reports, as CRI reports it.

pub mod container;
pub mod sandbox;
pub mod stop_signal;
