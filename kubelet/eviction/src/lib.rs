//! Eviction: ends pods before the node runs out of memory, disk or process IDs, and pods that exceed
//! their limits on local storage (upstream: `pkg/kubelet/eviction`).
//!
//! An [`EvictionManager`] observes the [`Signal`]s of the node every ten seconds, and at once when
//! the kernel notifies it. A [`Threshold`] that is met makes the node report a condition. Once its
//! grace period has passed, dead containers and unused images are removed; if that does not suffice,
//! the first pod by rank is evicted, and the node is observed again.
//!
//! Signals are measured alone, which costs a few system calls. Pods are measured only to rank them,
//! or if one of them limits its storage.

#![forbid(unsafe_code)]

mod host;
mod local_storage;
mod manager;
mod memory_notifier;
mod message;
mod metrics;
mod observation;
mod options;
mod rank;
mod signal;
mod threshold;
mod tracker;
mod usage;

pub use self::{
    host::{Eviction, EvictionHost, MemoryMark, Reclaim, UsageDepth},
    manager::{EvictedPod, EvictionManager},
    memory_notifier::MemoryNotifier,
    observation::{Layout, Observation, Observed},
    options::EvictionOptions,
    signal::{Condition, Signal},
    threshold::Threshold,
    usage::{ContainerUsage, PodUsage, PodUsages, pod_usages},
};

/// The reason of pods that are evicted, and of those that are not admitted under pressure.
pub const REASON: &str = "Evicted";
