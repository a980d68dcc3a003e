//! What only the API server knows, as the rest of the kubelet asks for it: the
//! [`client`] that everything goes through, and the [`objects`] that pods name.

pub mod client;
mod connection;
pub mod error;
pub mod identity;
pub mod kubeconfig;
pub mod objects;
mod rate_limit;
mod transport;
