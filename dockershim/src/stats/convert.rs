//! Conversion of usage values to CRI's types.

use cgroup_stats::{Memory, Pressure, Stall, Swap};
use cri_proto::runtime::v1::{
    ContainerAttributes, FilesystemIdentifier, FilesystemUsage, MemoryUsage, PodSandboxAttributes,
    PsiData, PsiStats, SwapUsage, UInt64Value,
};

use super::writable_layer::Measurement;
use crate::model::{Container, Sandbox};

/// Wraps a number in CRI's optional type.
pub fn value(value: u64) -> Option<UInt64Value> {
    Some(UInt64Value { value })
}

/// The identity of a container.
pub fn container_attributes(container: &Container) -> ContainerAttributes {
    let status = &container.status;
    ContainerAttributes {
        id: status.id.clone(),
        metadata: status.metadata.clone(),
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
    }
}

/// The identity of a sandbox.
pub fn sandbox_attributes(sandbox: &Sandbox) -> PodSandboxAttributes {
    let status = &sandbox.status;
    PodSandboxAttributes {
        id: status.id.clone(),
        metadata: status.metadata.clone(),
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
    }
}

/// Memory usage without swap.
pub fn memory_usage(memory: &Memory, psi: Option<PsiStats>, timestamp: i64) -> MemoryUsage {
    MemoryUsage {
        timestamp,
        working_set_bytes: value(memory.working_set()),
        available_bytes: memory.available().and_then(value),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.rss),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi,
    }
}

/// Swap usage.
pub fn swap_usage(swap: Swap, timestamp: i64) -> SwapUsage {
    SwapUsage {
        timestamp,
        swap_available_bytes: swap.available.and_then(value),
        swap_usage_bytes: value(swap.usage),
    }
}

/// Pressure stall information.
pub fn psi(pressure: &Pressure) -> PsiStats {
    let data = |stall: Stall| PsiData {
        total: stall.total,
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    PsiStats {
        full: pressure.full.map(data),
        some: pressure.some.map(data),
    }
}

/// A writable layer's usage of the engine's file system, at the time of the measurement.
pub fn filesystem_usage(measured: &Measurement, mountpoint: &str) -> FilesystemUsage {
    FilesystemUsage {
        timestamp: measured.timestamp,
        fs_id: Some(FilesystemIdentifier {
            mountpoint: mountpoint.to_owned(),
        }),
        used_bytes: value(measured.bytes),
        inodes_used: value(measured.inodes),
    }
}
