//! The pods of this node: which there are, their mirror pods, and the removal of their files.

pub mod manager;
pub mod mirror;
pub mod rejection;
pub(crate) mod removals;
