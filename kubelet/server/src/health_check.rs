//! The parts of the kubelet whose health is checked.

/// A check of a part of the kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    /// The sync loop runs.
    SyncLoop,
    /// Device plugins can register.
    DevicePlugin,
}
