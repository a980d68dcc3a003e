//! Where pods come from other than the API server.

pub mod file;
mod manifests;
pub mod static_pod;
mod watch;
