//! Support for the tests across processes: engines, images, a registry, nodes that run both
//! binaries, and clusters of one node.

#![forbid(unsafe_code)]

pub mod cgroup_root;
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
pub mod kubectl;
pub mod network_namespace;
pub mod node;
pub mod registry;
pub mod small_disk;
pub mod usage;
