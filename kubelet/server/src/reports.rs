//! Reports that `kubelet status` and `kubelet gc` read: what scarce resources made the kubelet do, and
//! what it would remove next.

use serde::{Deserialize, Serialize};

/// The path of the [`PressureReport`].
pub const PRESSURE_PATH: &str = "/debug/pressure";
/// The path of the [`GarbageReport`].
pub const GARBAGE_PATH: &str = "/debug/garbage";

/// The scarce resources of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PressureReport {
    /// The node's conditions that are true, such as `MemoryPressure`.
    pub conditions: Vec<String>,
    /// The pods that were evicted last, oldest first.
    pub evicted: Vec<EvictedPod>,
}

/// A pod that was evicted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was evicted, in RFC 3339.
    pub at: String,
    /// Why.
    pub message: String,
}

/// What the next garbage collection would remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GarbageReport {
    /// Images, in the order of their removal.
    pub images: Vec<GarbageImage>,
    /// The bytes that images have to free, besides those removed for their age; images are removed
    /// until then.
    pub bytes_to_free: u64,
    /// Dead containers.
    pub containers: Vec<GarbageContainer>,
    /// Dead sandboxes.
    pub sandboxes: Vec<GarbageContainer>,
}

/// An image that would be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GarbageImage {
    /// Its ID.
    pub id: String,
    /// Its tags and digests.
    pub names: Vec<String>,
    /// Its size in bytes. Layers that images share count for each.
    pub bytes: u64,
    /// How long it was not used, in seconds.
    pub unused_seconds: u64,
    /// Why it would be removed.
    pub reason: String,
}

/// A container or sandbox that would be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GarbageContainer {
    /// Its ID.
    pub id: String,
    /// The UID of its pod.
    pub pod_uid: String,
    /// Its name in the pod; empty for a sandbox.
    pub name: String,
    /// Why it would be removed.
    pub reason: String,
}
