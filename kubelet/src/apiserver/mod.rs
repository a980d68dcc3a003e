//! The API server, as the rest of the kubelet asks it and hears from it.

pub mod cluster;
pub mod list_watch;
pub mod objects;
