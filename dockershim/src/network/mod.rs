//! Sandbox networking.

pub mod cni;
pub mod docker;
pub mod hairpin;
pub mod port_forward;
pub mod ports;
