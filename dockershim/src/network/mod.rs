//! The network of a sandbox.

pub mod docker;
pub mod port_forward;
