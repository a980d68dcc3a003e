//! Feature gates of upstream that this kubelet has. All are off by default, as upstream.

use super::kubelet_configuration::KubeletConfiguration;

/// Protection and throttling of pods' memory with cgroup v2.
pub(super) const MEMORY_QOS: &str = "MemoryQoS";
/// Reservation of requested memory from lower QoS classes.
pub(super) const QOS_RESERVED: &str = "QOSReserved";

/// Whether a gate is on.
pub(super) fn is_on(config: &KubeletConfiguration, gate: &str) -> bool {
    config.feature_gates.get(gate) == Some(&true)
}
