//! Pod validation by the API server's rules. Static pods do not pass the API server, so the kubelet
//! validates them itself. All errors of a pod are reported, in the API server's words.

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
pub use security::APPARMOR_ANNOTATION;

#[cfg(test)]
mod tests;
