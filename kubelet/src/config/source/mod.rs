//! Where pods come from.

pub mod apiserver;
pub mod file;
pub mod http;
mod http_client;
mod manifests;
pub mod static_pod;
mod watch;
