//! Feature gates of upstream that this kubelet has.

use super::kubelet_configuration::KubeletConfiguration;

/// Protection and throttling of pods' memory with cgroup v2.
pub(super) const MEMORY_QOS: &str = "MemoryQoS";
/// Reservation of requested memory from lower QoS classes.
pub(super) const QOS_RESERVED: &str = "QOSReserved";

/// Some options of the static policy of the CPU manager.
pub(super) const CPU_ALPHA_OPTIONS: &str = "CPUManagerPolicyAlphaOptions";
pub(super) const CPU_BETA_OPTIONS: &str = "CPUManagerPolicyBetaOptions";
/// Containers with CPUs of their own have no CPU quota.
pub(super) const NO_QUOTA: &str = "DisableCPUQuotaWithExclusiveCPUs";
/// The gates that are on by default, as upstream.
const ON: [&str; 2] = [CPU_BETA_OPTIONS, NO_QUOTA];

/// Whether a gate is on.
pub(super) fn is_on(config: &KubeletConfiguration, gate: &str) -> bool {
    let given = config.feature_gates.get(gate).copied();
    given.unwrap_or_else(|| ON.contains(&gate))
}
