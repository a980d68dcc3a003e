//! The eviction manager: it observes the node and decides what to act on.

mod evict;
mod reclaim;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::{identity::PodUid, priority, qos::QosClass, quantity::NANOS, taints};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::reclaim::{Reclaimed, wait_for_cleanup};
use crate::{
    host::{EvictionHost, MemoryMark},
    local_storage,
    metrics::EvictionMetrics,
    observation::{Layout, Observation, Observed},
    options::EvictionOptions,
    signal::{Condition, Signal},
    threshold::{self, Threshold},
    tracker::Tracker,
};

/// Between observations, as upstream.
const PERIOD: Duration = Duration::from_secs(10);
/// The control plane's taint of nodes with memory pressure.
const MEMORY_TAINT: &str = "node.kubernetes.io/memory-pressure";

/// Evicts pods.
#[derive(Debug)]
pub struct EvictionManager {
    options: EvictionOptions,
    events: EventRecorder,
    state: Mutex<State>,
    metrics: EvictionMetrics,
}

#[derive(Debug, Default)]
struct State {
    tracker: Tracker,
    layout: Layout,
    /// For the layout; empty until the first observation.
    thresholds: Vec<Threshold>,
    evicted: VecDeque<EvictedPod>,
    /// Those that were evicted for space since the last cleanup.
    evicted_for_space: Vec<PodUid>,
    /// The last observations of memory.
    memory: BTreeMap<Signal, Observation>,
    /// When containers, images or evicted pods were removed last.
    removed_at: Option<Instant>,
}

/// A pod that was evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictedPod {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// When it was evicted.
    pub at: Timestamp,
    /// Why.
    pub message: String,
}

/// What to act on.
struct Urgent {
    threshold: Threshold,
    observed: Observed,
    layout: Layout,
}

impl EvictionManager {
    /// A manager that has observed nothing yet.
    pub fn new(options: EvictionOptions, events: EventRecorder) -> Self {
        let ignored = options.thresholds.iter();
        for threshold in ignored.filter(|it| threshold::is_of_container_fs(it)) {
            warn!(
                signal = threshold.signal.as_str(),
                "ignoring an eviction threshold: it is that of nodefs or imagefs, depending on \
                 where the runtime has writable layers"
            );
        }
        Self {
            options,
            events,
            state: Mutex::default(),
            metrics: EvictionMetrics::default(),
        }
    }

    /// The conditions of the node.
    pub fn conditions(&self) -> BTreeSet<Condition> {
        self.state.lock().tracker.conditions()
    }

    /// The pods that were evicted last, oldest first.
    pub fn evicted(&self) -> Vec<EvictedPod> {
        self.state.lock().evicted.iter().cloned().collect()
    }

    /// Whether the pod may start under the node's conditions.
    ///
    /// # Errors
    /// The message of the rejection, whose reason is `Evicted`.
    pub fn admit(&self, pod: &Pod) -> Result<(), String> {
        let conditions = self.conditions();
        if conditions.is_empty() || priority::is_critical(pod) {
            return Ok(());
        }
        if conditions.iter().eq([&Condition::Memory])
            && let Some(spec) = &pod.spec
        {
            let taint = Taint {
                key: MEMORY_TAINT.to_owned(),
                effect: "NoSchedule".to_owned(),
                ..Taint::default()
            };
            if QosClass::of(spec) != QosClass::BestEffort || taints::is_tolerated(spec, &taint) {
                return Ok(());
            }
        }
        let names: Vec<&str> = conditions.iter().map(|it| it.as_str()).collect();
        Err(format!("The node had condition: [{}]. ", names.join(" ")))
    }

    /// Evicts pods until cancelled.
    pub async fn run(&self, host: &impl EvictionHost, cancel: CancellationToken) {
        if self.options.thresholds.is_empty() && !self.options.local_storage_isolation {
            return;
        }
        let work = async {
            // Stalls may be reported every second: one report counts in each period.
            let mut is_notified = false;
            loop {
                let evicted = self.synchronize(host).await;
                if evicted.is_empty() {
                    let marks = match is_notified {
                        true => Vec::new(),
                        false => self.marks(),
                    };
                    tokio::select! {
                        () = sleep(PERIOD) => is_notified = false,
                        () = host.memory_is_scarce(&marks) => {
                            info!("the kernel reports that memory is scarce");
                            is_notified = true;
                        }
                    }
                } else {
                    wait_for_cleanup(host, &evicted).await;
                    self.remove_containers(host).await;
                    self.note_removal();
                }
            }
        };
        cancel.run_until_cancelled(work).await;
    }

    /// Observes the node, and acts. Returns the pods that were evicted.
    async fn synchronize(&self, host: &impl EvictionHost) -> Vec<PodUid> {
        let has_limits = || {
            let pods = host.pods();
            self.options.local_storage_isolation
                && pods.iter().any(|pod| local_storage::has_limit(pod))
        };
        if self.options.thresholds.is_empty() && !has_limits() {
            return Vec::new();
        }
        loop {
            let observed = match host.observe().await {
                Ok(observed) => observed,
                Err(error) => {
                    warn!(%error, "cannot observe the resources of the node");
                    return Vec::new();
                }
            };
            let urgent = self.take(observed);
            if self.options.local_storage_isolation {
                let evicted = self.enforce_local_storage(host).await;
                if !evicted.is_empty() {
                    return evicted;
                }
            }
            let Some(urgent) = urgent else {
                return Vec::new();
            };
            let resource = urgent.threshold.signal.resource().as_str();
            info!(
                signal = urgent.threshold.signal.as_str(),
                resource, "too little is available; reclaiming"
            );
            let message = format!("Attempting to reclaim {resource}");
            let events = &self.events;
            events.warning(Subject::Node, reason::EVICTION_THRESHOLD_MET, message);
            match self.reclaim(host, &urgent).await {
                Reclaimed::Enough => {
                    info!(resource, "enough was reclaimed without evicting a pod");
                    return Vec::new();
                }
                Reclaimed::TooLittle => {
                    return self.evict_first(host, &urgent).await.into_iter().collect();
                }
                Reclaimed::Interrupted => {}
            }
        }
    }

    /// Takes an observation. Returns the most urgent threshold to act on.
    fn take(&self, observed: Observed) -> Option<Urgent> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let layout = observed.layout.unwrap_or(state.layout);
        if state.thresholds.is_empty() || layout != state.layout {
            state.layout = layout;
            state.thresholds = threshold::for_layout(&self.options.thresholds, layout);
            state.tracker = Tracker::default();
        }
        let memory = observed.signals.iter();
        let memory = memory.filter(|(signal, _)| signal.condition() == Condition::Memory);
        state.memory = memory.map(|(signal, it)| (*signal, *it)).collect();
        let period = self.options.pressure_transition_period;
        let due = state
            .tracker
            .observe(&state.thresholds, &observed.signals, period);
        for (index, duration) in state.tracker.met() {
            let signal = state.thresholds[index].signal.as_str();
            debug!(signal, ?duration, "an eviction threshold is met");
        }
        // Thresholds are sorted by urgency.
        let first = due.into_iter().min()?;
        Some(Urgent {
            threshold: state.thresholds[first],
            observed,
            layout,
        })
    }

    /// The thresholds of memory that are not met.
    fn marks(&self) -> Vec<MemoryMark> {
        if !self.options.kernel_notification {
            return Vec::new();
        }
        let state = self.state.lock();
        let memory = state
            .thresholds
            .iter()
            .filter(|threshold| threshold.signal.condition() == Condition::Memory);
        let marks = memory.filter_map(|threshold| {
            let observation = state.memory.get(&threshold.signal)?;
            if threshold.is_met(observation) {
                return None;
            }
            let wanted = u64::try_from(threshold.quantity(observation) / NANOS).ok()?;
            Some(MemoryMark {
                signal: threshold.signal,
                working_set: observation.capacity.saturating_sub(wanted),
            })
        });
        marks.collect()
    }
}

impl Collector for EvictionManager {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}
