//! Dynamic resource allocation: programs called drivers offer devices, a `ResourceClaim` says which ones
//! pods get, and the scheduler allocates them.
//!
//! Before a pod's sandbox is created, the drivers of its claims prepare their devices, and answer which
//! CDI devices the runtime adds to the containers. Several pods may use a claim: when the last of them
//! has ended, the drivers undo it. Which pods use which claims outlives the kubelet, the driver and the
//! node.

#![forbid(unsafe_code)]

mod checkpoint;
mod claims;
mod driver;
mod drivers;
mod error;
mod health;
mod manager;
mod metrics;
mod pod_claims;
mod registration;
mod slices;
#[cfg(test)]
mod tests;

/// The type of drivers that the plugin watcher finds.
pub const PLUGIN_TYPE: &str = "DRAPlugin";

pub use self::{
    claims::{ClaimDevice, ClaimKey, PreparedClaim},
    error::DraError,
    health::{DeviceHealth, Health},
    manager::{DraManager, DraParts},
    slices::ClusterNode,
};
