//! Whether a pod is one that the API server would take. Pods from files never
//! pass the API server, so the kubelet checks them itself; all faults of a pod
//! are found, and each is told in the API server's words.

mod container;
mod context;
mod env;
mod metadata;
pub mod mounts;
mod pod;
mod probe;
mod resources;
mod restart;
mod security;
pub mod static_pod;
mod volume;

pub use pod::validate_pod;

#[cfg(test)]
mod tests;
