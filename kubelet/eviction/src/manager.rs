//! The eviction manager.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Taint};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_host::clock;
use kubelet_metrics::{Collector, Exposition};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    priority,
    qos::QosClass,
    quantity::NANOS,
    taints,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::{
    host::{Eviction, EvictionHost, MemoryMark, UsageDepth, reclaims},
    local_storage::{self, Excess},
    message::{self, Explanation},
    metrics::EvictionMetrics,
    observation::{Layout, Observation, Observed},
    options::EvictionOptions,
    rank,
    signal::{Condition, Signal},
    threshold::{self, Threshold},
    tracker::Tracker,
    usage::PodUsages,
};

/// Between observations, as upstream.
const PERIOD: Duration = Duration::from_secs(10);
/// The grace period of a pod that is evicted by a hard threshold or a limit, as upstream.
const IMMEDIATELY: Duration = Duration::from_secs(1);
/// How long the next eviction waits for the resources of an evicted pod, and how often it looks.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
const CLEANUP_PERIOD: Duration = Duration::from_secs(1);
/// How long space of removed containers, images and pods is waited for. Runtimes such as
/// containerd free it in the background; another pod must not be evicted meanwhile.
const RECLAIM_TIMEOUT: Duration = CLEANUP_TIMEOUT;
/// The same, while a hundredth of the threshold or more has been used up since the removal.
const SHORT_RECLAIM_TIMEOUT: Duration = Duration::from_secs(5);
/// Evicted pods that are remembered for people.
const REMEMBERED: usize = 32;
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

/// What a reclaim has come to.
#[derive(Debug)]
enum Reclaimed {
    /// Enough is available.
    Enough,
    /// A pod must go.
    TooLittle,
    /// A more urgent resource is scarce now.
    Interrupted,
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

    /// Evicts the pods that exceed their limits on local storage.
    async fn enforce_local_storage(&self, host: &impl EvictionHost) -> Vec<PodUid> {
        let pods = host.pods();
        let depth = if pods.iter().any(|pod| local_storage::has_storage_limit(pod)) {
            UsageDepth::Everything
        } else if pods.iter().any(|pod| local_storage::has_volume_limit(pod)) {
            UsageDepth::Files
        } else {
            return Vec::new();
        };
        let Some(usages) = measured(host, depth).await else {
            return Vec::new();
        };
        let layout = self.state.lock().layout;
        let mut evicted = Vec::new();
        for pod in &pods {
            let usage = usages.get(&PodUid::of(pod));
            let Some(excess) = usage.and_then(|it| local_storage::excess(pod, it, layout)) else {
                continue;
            };
            let Excess { message, signal } = excess;
            let explanation = Explanation {
                message,
                annotations: Vec::new(),
            };
            if self.evict(host, pod, explanation, IMMEDIATELY, false).await {
                self.metrics.evicted(signal);
                evicted.push(PodUid::of(pod));
            }
        }
        let for_space = &mut self.state.lock().evicted_for_space;
        for_space.extend(evicted.iter().cloned());
        evicted
    }

    /// Frees what the node does not need, and waits for that and for the space of pods that were
    /// evicted before.
    async fn reclaim(&self, host: &impl EvictionHost, urgent: &Urgent) -> Reclaimed {
        let signal = urgent.threshold.signal;
        let reclaims = reclaims(signal, urgent.layout);
        for what in reclaims {
            match host.reclaim(*what).await {
                Ok(true) => self.note_removal(),
                Ok(false) => {}
                Err(error) => warn!(?what, %error, "cannot reclaim everything"),
            }
        }
        if reclaims.is_empty() {
            return Reclaimed::TooLittle;
        }
        let removed_at = self.state.lock().removed_at;
        let mut first = None;
        loop {
            let observed = match host.observe().await {
                Ok(observed) => observed,
                Err(error) => {
                    warn!(%error, "cannot observe the resources of the node after reclaiming");
                    return Reclaimed::TooLittle;
                }
            };
            let Some(left) = self.unresolved(&observed, signal) else {
                return Reclaimed::Enough;
            };
            let next = self.take(observed);
            if next.is_some_and(|next| next.threshold.signal < signal) {
                return Reclaimed::Interrupted;
            }
            let first = *first.get_or_insert(left);
            let used_up = i128::from(first.available.saturating_sub(left.available)) * NANOS;
            let longest = match used_up * 100 < urgent.threshold.quantity(&left) {
                true => RECLAIM_TIMEOUT,
                false => SHORT_RECLAIM_TIMEOUT,
            };
            if removed_at.is_none_or(|at| at.elapsed() >= longest) {
                return Reclaimed::TooLittle;
            }
            sleep(CLEANUP_PERIOD).await;
        }
    }

    /// Removes the containers of pods that were evicted for space, as upstream: their logs are part of
    /// it. Those of other evicted pods are kept for a while, like all dead containers.
    async fn remove_containers(&self, host: &impl EvictionHost) {
        let pods = std::mem::take(&mut self.state.lock().evicted_for_space);
        if pods.is_empty() {
            return;
        }
        match timeout(CLEANUP_TIMEOUT, host.remove_containers(&pods)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(error, "cannot remove the containers of evicted pods"),
            Err(_) => warn!("the containers of evicted pods are not removed yet; continuing"),
        }
    }

    fn note_removal(&self) {
        self.state.lock().removed_at = Some(Instant::now());
    }

    /// What is available if a threshold of the signal is met. Those of other signals, which upstream
    /// includes, have their own turn: for them, no pod of this one's rank should go.
    fn unresolved(&self, observed: &Observed, signal: Signal) -> Option<Observation> {
        let state = self.state.lock();
        let mut thresholds = state.thresholds.iter().filter(|it| it.signal == signal);
        let observation = observed.signals.get(&signal).copied();
        observation.filter(|it| thresholds.any(|threshold| threshold.is_unresolved(it)))
    }

    /// Evicts the first pod by rank that is not critical.
    async fn evict_first(&self, host: &impl EvictionHost, urgent: &Urgent) -> Option<PodUid> {
        let Urgent {
            threshold,
            observed,
            layout,
        } = urgent;
        let observation = observed.signals.get(&threshold.signal)?;
        let signal = threshold.signal.as_str();
        let mut pods = host.pods();
        if pods.is_empty() {
            error!(
                signal,
                "too little is available, but there is no pod to evict"
            );
            return None;
        }
        let depth = match threshold.signal.condition() {
            Condition::Disk => UsageDepth::Fresh,
            Condition::Memory | Condition::Pid => UsageDepth::Kernel,
        };
        let usages = measured(host, depth).await?;
        rank::rank(&mut pods, &usages, threshold.signal, *layout);
        self.metrics.measured(signal, observation.at);
        for pod in &pods {
            let usage = usages.get(&PodUid::of(pod));
            let explanation = message::explain(pod, usage, threshold, observation);
            let grace_period = self.grace_period(pod, threshold);
            if self.evict(host, pod, explanation, grace_period, true).await {
                self.metrics.evicted(signal);
                let uid = PodUid::of(pod);
                if threshold.signal.condition() == Condition::Disk {
                    self.state.lock().evicted_for_space.push(uid.clone());
                }
                return Some(uid);
            }
        }
        warn!(signal, "too little is available, but all pods are critical");
        None
    }

    /// A soft threshold respects the pod's own grace period.
    fn grace_period(&self, pod: &Pod, threshold: &Threshold) -> Duration {
        if threshold.is_hard() {
            return IMMEDIATELY;
        }
        let longest = self.options.max_pod_grace_period;
        let spec = pod.spec.as_ref();
        let own = spec.and_then(|spec| spec.termination_grace_period_seconds);
        let own = own.map(|seconds| Duration::from_secs(seconds.try_into().unwrap_or_default()));
        own.map_or(longest, |own| own.min(longest))
    }

    /// Evicts a pod, unless it is critical: static pods would not be admitted again. Returns whether
    /// it was.
    async fn evict(
        &self,
        host: &impl EvictionHost,
        pod: &Arc<Pod>,
        explanation: Explanation,
        grace_period: Duration,
        is_disruption: bool,
    ) -> bool {
        let (full_name, pod_uid) = (identity::full_name(pod), PodUid::of(pod));
        if priority::is_critical(pod) {
            warn!(pod = full_name, %pod_uid, "not evicting a critical pod");
            return false;
        }
        let Explanation {
            message,
            annotations,
        } = explanation;
        info!(pod = full_name, %pod_uid, message, "evicting a pod");
        self.events
            .annotated_warning(Subject::Pod(pod), reason::EVICTED, &annotations, &message);
        self.remember(EvictedPod {
            namespace: identity::namespace(pod).to_owned(),
            name: identity::name(pod).to_owned(),
            at: clock::now(),
            message: message.clone(),
        });
        let eviction = Eviction {
            message,
            grace_period,
            is_disruption,
        };
        if let Err(error) = host.evict(pod, eviction).await {
            error!(pod = full_name, %pod_uid, %error, "the evicted pod has not ended");
        }
        true
    }

    fn remember(&self, pod: EvictedPod) {
        let evicted = &mut self.state.lock().evicted;
        if evicted.len() == REMEMBERED {
            evicted.pop_front();
        }
        evicted.push_back(pod);
    }
}

impl Collector for EvictionManager {
    fn collect(&self, page: &mut Exposition) {
        self.metrics.collect(page);
    }
}

/// Measures the pods. Without measurements no pod is evicted in this round: those that would rank
/// first may not be the ones that use the most.
async fn measured(host: &impl EvictionHost, depth: UsageDepth) -> Option<PodUsages> {
    let usages = host.usages(depth).await;
    usages
        .inspect_err(|error| warn!(error, "cannot measure pods; none is evicted"))
        .ok()
}

/// Waits until the resources of evicted pods are released, so that they count for the next
/// observation.
async fn wait_for_cleanup(host: &impl EvictionHost, evicted: &[PodUid]) {
    let begun = Instant::now();
    let cleaned_up = async {
        while !evicted.iter().all(|uid| host.is_cleaned_up(uid)) {
            sleep(CLEANUP_PERIOD).await;
        }
    };
    match timeout(CLEANUP_TIMEOUT, cleaned_up).await {
        Ok(()) => debug!(took = ?begun.elapsed(), "the resources of evicted pods are released"),
        Err(_) => warn!("the resources of evicted pods are not released yet; continuing"),
    }
}
