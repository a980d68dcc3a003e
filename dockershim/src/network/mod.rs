//! The network of a sandbox.

pub mod docker;
