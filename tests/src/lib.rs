//! Support for the tests: a fake runtime, a fake CSI driver, an API server, test images, a
//! registry, and nodes that run both binaries.

#![forbid(unsafe_code)]

pub mod api_server;
pub mod cluster;
pub mod cni;
pub mod containerd;
mod containerd_shims;
pub mod control_plane;
pub mod cri;
pub mod engine;
pub mod engine_proxy;
pub mod figures;
pub mod images;
mod kubeconfig;
pub mod kubectl;
pub mod network_namespace;
pub mod node;
pub mod registry;
