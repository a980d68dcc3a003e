//! Pods as the kubelet holds them: who they are, which there are, what they need,
//! and where their files are.

pub mod manager;
pub mod mirror;
pub(crate) mod removals;
