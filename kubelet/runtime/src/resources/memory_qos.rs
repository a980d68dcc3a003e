//! Throttling and protection of containers' memory, Kubernetes' proposal 2570.

use cri_proto::runtime::v1::LinuxContainerResources;
use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use kubelet_container_manager::MemoryReservationPolicy;
use kubelet_pod_spec::{
    qos::QosClass,
    resources::{amount, units},
};

use super::Rules;

/// Bytes. A kernel with larger pages rounds down to its own.
const PAGE: i64 = 4096;

/// How the memory of containers is throttled and protected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryQos {
    /// Protection of requested memory (`memoryReservationPolicy`).
    pub reservation: MemoryReservationPolicy,
    /// Share of the memory between a container's request and its limit that it uses without
    /// throttling, above 0 and up to 1 (`memoryThrottlingFactor`).
    pub throttling_factor: f64,
    /// Bytes of the machine's memory that are reserved from pods.
    pub reserved: i64,
}

/// Sets `memory.min`, `memory.low` and `memory.high` if the gate is on and cgroup v2 is mounted.
pub(super) fn configure(
    linux: &mut LinuxContainerResources,
    spec: &PodSpec,
    own: &ResourceRequirements,
    rules: Rules<'_>,
) {
    let Some(qos) = rules.options.memory_qos.filter(|_| rules.machine.cgroup_v2) else {
        return;
    };
    let request = units(amount(own.requests.as_ref(), "memory"));
    let limit = units(amount(own.limits.as_ref(), "memory"));
    let mut set = |file: &str, value: i64| {
        linux.unified.insert(file.to_owned(), value.to_string());
    };
    if request != 0 && qos.reservation == MemoryReservationPolicy::Tiered {
        match QosClass::of(spec) {
            QosClass::Guaranteed => set("memory.min", request),
            _ => set("memory.low", request),
        }
    } else {
        set("memory.min", 0);
        set("memory.low", 0);
    }
    if request == limit {
        return;
    }
    let most = match limit {
        0 => rules.machine.memory.saturating_sub(qos.reserved),
        limit => limit,
    };
    let high = threshold(request, most, qos.throttling_factor);
    if most > 0 && high > request {
        set("memory.high", high);
    }
}

/// Bytes, in whole pages, from which a container is throttled that requests `request` bytes and
/// can use `most`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "rounded as upstream"
)]
fn threshold(request: i64, most: i64, factor: f64) -> i64 {
    let bytes = request as f64 + (most as f64 - request as f64) * factor;
    bytes.floor() as i64 / PAGE * PAGE
}
