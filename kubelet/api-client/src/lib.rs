//! The kubelet's client of the API server. All requests go through [`client`]; pods get the objects
//! they refer to from [`objects`]; [`certificate`] obtains and renews this node's certificates,
//! [`tokens`] caches service account tokens, and [`events`] records events.

#![forbid(unsafe_code)]

pub mod allocatable;
pub mod certificate;
pub mod client;
mod connection;
mod credentials;
pub mod events;
pub mod identity;
pub mod kubeconfig;
pub mod list_watch;
pub mod metrics;
pub mod objects;
mod rate_limit;
pub mod request;
mod retry_after;
mod server_trust;
pub mod tokens;
mod transport;
