//! Device plugins: programs that offer devices of the node as extended resources, such as GPUs. A
//! container that requests some gets them when its pod is admitted.
//!
//! The choice is made in memory; a plugin that has a preference is asked first, and asked again when
//! the choice has changed meanwhile. Then each plugin is asked what the container needs to use its
//! devices, which is [saved](DeviceManager::save) before the container is created. What containers
//! have outlives the kubelet, the plugin and the node.

#![forbid(unsafe_code)]

mod assignments;
mod checkpoint;
mod choice;
mod device;
mod error;
mod hints;
mod ledger;
mod manager;
mod metrics;
mod plugin;
mod registration;
mod response;
#[cfg(test)]
mod tests;

/// The type of device plugins that the plugin watcher finds.
pub const PLUGIN_TYPE: &str = "DevicePlugin";

pub use self::{
    choice::{DeviceRequest, Preferences, Reusable},
    device::DevicesPerNode,
    error::{DeviceError, Obstacle, PreferenceRequest},
    ledger::{Ledger, PodAssignments},
    manager::{DeviceCapacity, DeviceManager},
    response::ContainerDevices,
};
