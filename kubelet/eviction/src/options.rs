//! The options of eviction.

use std::time::Duration;

use crate::threshold::Threshold;

/// When pods are evicted, and how.
#[derive(Clone, Debug)]
pub struct EvictionOptions {
    /// When to act (`evictionHard`, `evictionSoft`, `evictionSoftGracePeriod`,
    /// `evictionMinimumReclaim`).
    pub thresholds: Vec<Threshold>,
    /// The longest grace period of a pod that is evicted by a soft threshold
    /// (`evictionMaxPodGracePeriod`).
    pub max_pod_grace_period: Duration,
    /// How long a condition of the node stays true after its last observation
    /// (`evictionPressureTransitionPeriod`).
    pub pressure_transition_period: Duration,
    /// Pods that exceed their limits on ephemeral storage are evicted
    /// (`localStorageCapacityIsolation`).
    pub local_storage_isolation: bool,
    /// The kernel notifies the kubelet when memory becomes scarce (`kernelMemcgNotification`).
    pub kernel_notification: bool,
}

impl Default for EvictionOptions {
    /// Upstream's defaults without thresholds.
    fn default() -> Self {
        Self {
            thresholds: Vec::new(),
            max_pod_grace_period: Duration::ZERO,
            pressure_transition_period: Duration::from_secs(300),
            local_storage_isolation: true,
            kernel_notification: false,
        }
    }
}
