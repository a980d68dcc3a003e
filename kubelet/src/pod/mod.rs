//! Pods as the kubelet holds them: who they are, which there are, what they need,
//! and where their files are.

pub mod directory;
pub mod identity;
pub mod manager;
pub mod mirror;
pub mod priority;
pub(crate) mod removals;
pub mod resources;
pub mod shortage;
