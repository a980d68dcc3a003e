//! Freeing what the node does not need, and waiting for what was freed.

use std::time::Duration;

use kubelet_pod_spec::{identity::PodUid, quantity::NANOS};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use super::{EvictionManager, Urgent};
use crate::{
    host::{EvictionHost, reclaims},
    observation::{Observation, Observed},
    signal::Signal,
};

/// How long the next eviction waits for the resources of an evicted pod, and how often it looks.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
const CLEANUP_PERIOD: Duration = Duration::from_secs(1);
/// How long space of removed containers, images and pods is waited for. Runtimes such as
/// containerd free it in the background; another pod must not be evicted meanwhile.
const RECLAIM_TIMEOUT: Duration = CLEANUP_TIMEOUT;
/// The same, while a hundredth of the threshold or more has been used up since the removal.
const SHORT_RECLAIM_TIMEOUT: Duration = Duration::from_secs(5);

/// What a reclaim has come to.
#[derive(Debug)]
pub(super) enum Reclaimed {
    /// Enough is available.
    Enough,
    /// A pod must go.
    TooLittle,
    /// A more urgent resource is scarce now.
    Interrupted,
}

impl EvictionManager {
    /// Frees what the node does not need, and waits for that and for the space of pods that were
    /// evicted before.
    pub(super) async fn reclaim(&self, host: &impl EvictionHost, urgent: &Urgent) -> Reclaimed {
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
    pub(super) async fn remove_containers(&self, host: &impl EvictionHost) {
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

    pub(super) fn note_removal(&self) {
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
}

/// Waits until the resources of evicted pods are released, so that they count for the next
/// observation.
pub(super) async fn wait_for_cleanup(host: &impl EvictionHost, evicted: &[PodUid]) {
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
