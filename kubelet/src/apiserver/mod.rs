//! The API server, as the rest of the kubelet asks it and hears from it: the [`client`]
//! that everything goes through, and the [`objects`] that pods name.

pub mod allocatable;
pub mod client;
mod connection;
pub mod identity;
pub mod kubeconfig;
pub mod list_watch;
pub mod metrics;
pub mod objects;
mod rate_limit;
pub mod request;
mod retry_after;
mod transport;
