//! The pods of this node: the desired pods, their mirror pods, and the removal of their files.

pub mod features;
pub mod manager;
pub mod mirror;
pub mod rejection;
pub(crate) mod removals;
pub mod start_latency;
