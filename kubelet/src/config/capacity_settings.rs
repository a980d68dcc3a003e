//! The options of capacity and allocatable, from the configuration.

use kubelet_node::capacity::CapacityOptions;

use super::{
    kubelet_configuration::KubeletConfiguration, reservation::reservation, values::at_least_zero,
};

/// The options of a validated configuration.
pub(super) fn capacity(config: &KubeletConfiguration) -> CapacityOptions {
    CapacityOptions {
        max_pods: at_least_zero(config.max_pods),
        pods_per_core: at_least_zero(config.pods_per_core),
        local_storage: config.local_storage_capacity_isolation != Some(false),
        reservation: reservation(config),
    }
}
