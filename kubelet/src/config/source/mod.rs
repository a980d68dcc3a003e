//! Where pods come from other than the API server.

pub mod file;
pub mod http;
mod http_client;
mod manifests;
pub mod static_pod;
mod watch;
