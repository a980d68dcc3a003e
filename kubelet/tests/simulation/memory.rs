//! The memory of the simulated node.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use futures::future::BoxFuture;
use kubelet::node_pressure::Measurements;
use kubelet_eviction::{
    EvictionOptions, Observation, Observed, PodUsages, Signal, Threshold, UsageDepth,
};
use kubelet_host::clock;
use kubelet_pod_spec::{amount_or_share::AmountOrShare, quantity::NANOS};
use parking_lot::Mutex;
use tokio::time::Instant;

/// In bytes. Less than the threshold is scarce.
const CAPACITY: u64 = 1000;
const THRESHOLD: u64 = 100;

/// Memory that becomes scarce, until a pod is evicted.
#[derive(Debug, Default)]
pub(crate) struct SimulatedMemory {
    is_scarce: AtomicBool,
    was_scarce: AtomicBool,
    /// When pods were about to be evicted.
    evictions: Mutex<Vec<Instant>>,
}

impl SimulatedMemory {
    /// The kubelet has to evict a pod.
    pub(crate) fn become_scarce(&self) {
        self.is_scarce.store(true, Relaxed);
        self.was_scarce.store(true, Relaxed);
    }

    /// There is enough again.
    pub(crate) fn become_plentiful(&self) {
        self.is_scarce.store(false, Relaxed);
    }

    /// Whether a pod may have been evicted before.
    pub(crate) fn has_evicted(&self, before: Instant) -> bool {
        self.evictions.lock().iter().any(|at| *at <= before)
    }

    /// Whether pods may have been evicted, or refused.
    pub(crate) fn was_scarce(&self) -> bool {
        self.was_scarce.load(Relaxed)
    }
}

impl Measurements for SimulatedMemory {
    fn observe(&self) -> BoxFuture<'_, Result<Observed, String>> {
        let available = match self.is_scarce.load(Relaxed) {
            true => THRESHOLD / 2,
            false => CAPACITY / 2,
        };
        let memory = Observation {
            available,
            capacity: CAPACITY,
            at: clock::now(),
        };
        let observed = Observed {
            signals: [(Signal::MemoryAvailable, memory)].into(),
            layout: None,
        };
        Box::pin(async { Ok(observed) })
    }

    /// Pods are measured to choose the one that is evicted.
    fn usages(&self, depth: UsageDepth) -> BoxFuture<'_, Result<PodUsages, String>> {
        if depth != UsageDepth::Files {
            self.become_plentiful();
            self.evictions.lock().push(Instant::now());
        }
        Box::pin(async { Ok(PodUsages::new()) })
    }
}

/// Evicts by a threshold of memory.
pub(crate) fn options() -> EvictionOptions {
    let amount = AmountOrShare::Amount(i128::from(THRESHOLD) * NANOS);
    EvictionOptions {
        thresholds: vec![Threshold::hard(Signal::MemoryAvailable, amount)],
        pressure_transition_period: std::time::Duration::from_secs(30),
        ..EvictionOptions::default()
    }
}
