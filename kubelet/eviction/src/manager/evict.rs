//! Evicting pods: the first by rank, or those that exceed their limits on local storage.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_api_client::events::{Subject, reason};
use kubelet_host::clock;
use kubelet_pod_spec::{
    identity::{self, PodUid},
    priority,
};
use tracing::{error, info, warn};

use super::{EvictedPod, EvictionManager, Urgent};
use crate::{
    host::{Eviction, EvictionHost, UsageDepth},
    local_storage::{self, Excess},
    message::{self, Explanation},
    rank,
    signal::Condition,
    threshold::Threshold,
    usage::PodUsages,
};

/// The grace period of a pod that is evicted by a hard threshold or a limit, as upstream.
pub(super) const IMMEDIATELY: Duration = Duration::from_secs(1);
/// Evicted pods that are remembered for people.
const REMEMBERED: usize = 32;

impl EvictionManager {
    /// Evicts the pods that exceed their limits on local storage.
    pub(super) async fn enforce_local_storage(&self, host: &impl EvictionHost) -> Vec<PodUid> {
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

    /// Evicts the first pod by rank that is not critical.
    pub(super) async fn evict_first(
        &self,
        host: &impl EvictionHost,
        urgent: &Urgent,
    ) -> Option<PodUid> {
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

/// Measures the pods. Without measurements no pod is evicted in this round: those that would rank
/// first may not be the ones that use the most.
async fn measured(host: &impl EvictionHost, depth: UsageDepth) -> Option<PodUsages> {
    let usages = host.usages(depth).await;
    usages
        .inspect_err(|error| warn!(error, "cannot measure pods; none is evicted"))
        .ok()
}
