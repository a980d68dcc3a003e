//! Sandbox networking.

pub mod bandwidth;
mod bridge_port;
pub mod cni;
pub mod docker;
pub mod hairpin;
pub mod port_forward;
pub mod ports;
pub mod shaping;
