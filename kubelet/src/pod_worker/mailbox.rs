//! The requests to a pod worker. The newest request wins, and a kill cannot be revoked.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kubelet_runtime::grace_period;
use tokio::time::Instant;

use crate::status::Verdict;

/// How to kill a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kill {
    /// Overrides the pod's own grace period. Can only shrink.
    pub grace: Option<Duration>,
    /// Whether to remove everything of the pod, because it is gone from its source.
    pub deleted: bool,
    /// The pod's final status, if the kubelet itself decided to end it.
    pub verdict: Option<Verdict>,
}

/// The requests to one worker, which receives them through a watch channel.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// The pod from its source; none for a pod that only the runtime knows.
    pub(super) pod: Option<Arc<Pod>>,
    /// Counts the requests for a sync.
    pub(super) revision: u64,
    /// Set once the pod must be killed.
    pub(super) kill: Option<Kill>,
    /// The pod came back while it was terminating, and runs again afterwards.
    restart: Option<Arc<Pod>>,
    /// All containers of the pod have ended.
    has_ended: bool,
    /// The pod's resources on the node are released.
    has_settled: bool,
    /// When the worker had nothing left to do.
    finished: Option<Instant>,
}

/// A snapshot of the requests.
pub(super) struct RequestSnapshot {
    pub(super) pod: Option<Arc<Pod>>,
    pub(super) revision: u64,
    pub(super) kill: Option<Kill>,
    /// As [`Mailbox::grace`].
    pub(super) grace: Option<Duration>,
}

impl Mailbox {
    /// A consistent snapshot of the requests.
    pub(super) fn snapshot(&self) -> RequestSnapshot {
        RequestSnapshot {
            pod: self.pod.clone(),
            revision: self.revision,
            kill: self.kill.clone(),
            grace: self.grace(),
        }
    }

    /// Run the pod as `pod` specifies. Returns false if the worker is gone.
    pub(super) fn update(&mut self, pod: &Arc<Pod>) -> bool {
        if self.finished.is_some() {
            return false;
        }
        if self.is_deleted() {
            self.restart = Some(Arc::clone(pod));
            return true;
        }
        self.pod = Some(Arc::clone(pod));
        self.revision += 1;
        if pod.metadata.deletion_timestamp.is_some() {
            let grace = pod.metadata.deletion_grace_period_seconds;
            let grace = grace.and_then(|seconds| u64::try_from(seconds).ok());
            self.kill(Kill {
                grace: grace.map(Duration::from_secs),
                ..Kill::default()
            });
        }
        true
    }

    /// Sync the pod.
    pub(super) fn sync(&mut self) {
        self.revision += 1;
    }

    /// Kill the pod. Of several grace periods, the shortest applies.
    pub(super) fn kill(&mut self, kill: Kill) {
        self.restart = None;
        let own = self.pod.as_deref().map(grace_period);
        let grace = kill.grace.or(own);
        let before = self.kill.take().unwrap_or_default();
        self.kill = Some(Kill {
            grace: match (before.grace, grace) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
            deleted: kill.deleted || before.deleted,
            verdict: kill.verdict.or(before.verdict),
        });
    }

    /// The grace period of the kill, or the pod's own if it ended by itself.
    pub(super) fn grace(&self) -> Option<Duration> {
        match &self.kill {
            Some(kill) => kill.grace,
            None => self.pod.as_deref().map(grace_period),
        }
    }

    /// Whether to remove everything of the pod.
    pub(super) fn is_deleted(&self) -> bool {
        self.kill.as_ref().is_some_and(|kill| kill.deleted)
    }

    /// Whether nothing of the pod in the runtime is needed any more: it was evicted, or is gone from
    /// its source. One that is only marked for deletion still has a status to report.
    pub(super) fn is_removable(&self) -> bool {
        let verdict = self.kill.as_ref().and_then(|kill| kill.verdict.as_ref());
        let is_evicted = verdict.is_some_and(|it| it.reason == kubelet_eviction::REASON);
        self.has_settled && (is_evicted || self.is_deleted())
    }

    /// Whether the pod runs again afterwards.
    pub(super) const fn comes_back(&self) -> bool {
        self.restart.is_some()
    }

    /// All containers of the pod have ended.
    pub(super) const fn end(&mut self) {
        self.has_ended = true;
    }

    /// Whether all containers of the pod have ended.
    pub(super) const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The pod's resources on the node are released.
    pub(super) const fn settle(&mut self) {
        self.has_settled = true;
    }

    /// Whether the pod's resources on the node are released.
    pub(super) const fn has_settled(&self) -> bool {
        self.has_settled
    }

    /// The worker has nothing left to do. Returns true if it starts over.
    pub(super) fn finish(&mut self) -> bool {
        let Some(pod) = self.restart.take() else {
            self.finished = Some(Instant::now());
            return false;
        };
        self.kill = None;
        self.has_ended = false;
        self.has_settled = false;
        // It may have been marked for deletion meanwhile.
        self.update(&pod)
    }

    /// When the worker had nothing left to do.
    pub(super) const fn finished(&self) -> Option<Instant> {
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kill(grace: Option<u64>, deleted: bool) -> Kill {
        Kill {
            grace: grace.map(Duration::from_secs),
            deleted,
            verdict: None,
        }
    }

    #[test]
    fn a_pod_that_comes_back_is_run_again_after_its_end() {
        let mut mailbox = Mailbox::default();
        mailbox.kill(kill(None, true));
        let pod = Arc::new(Pod::default());
        assert!(mailbox.update(&pod));
        assert!(mailbox.is_deleted() && mailbox.pod.is_none());
        assert!(mailbox.finish());
        assert!(mailbox.kill.is_none() && mailbox.pod.is_some());
        assert!(!mailbox.finish());
        assert!(!mailbox.update(&pod));
    }

    #[test]
    fn a_pod_that_comes_back_and_goes_again_is_gone() {
        let mut mailbox = Mailbox::default();
        mailbox.kill(kill(None, true));
        mailbox.update(&Arc::new(Pod::default()));
        mailbox.kill(kill(None, true));
        assert!(!mailbox.finish());
    }

    #[test]
    fn what_a_pod_failed_for_stays() {
        let mut mailbox = Mailbox::default();
        let verdict = Verdict {
            always_fails: true,
            reason: "Evicted".to_owned(),
            message: "no memory".to_owned(),
            disruption: None,
        };
        mailbox.kill(Kill {
            verdict: Some(verdict.clone()),
            ..Kill::default()
        });
        mailbox.kill(kill(Some(1), true));
        assert_eq!(mailbox.kill.unwrap().verdict, Some(verdict));
    }

    #[test]
    fn a_pod_that_comes_back_marked_for_deletion_is_ended_again() {
        let mut mailbox = Mailbox::default();
        mailbox.kill(kill(None, true));
        let mut pod = Pod::default();
        mailbox.update(&Arc::new(pod.clone()));
        pod.metadata.deletion_timestamp = Some(kubelet_host::clock::now_time());
        pod.metadata.deletion_grace_period_seconds = Some(3);
        mailbox.update(&Arc::new(pod));
        assert!(mailbox.finish());
        assert_eq!(mailbox.kill, Some(kill(Some(3), false)));
    }

    proptest! {
        #[test]
        fn kills_only_get_stricter(
            kills in prop::collection::vec((prop::option::of(0u64..100), any::<bool>()), 1..10)
        ) {
            let mut mailbox = Mailbox::default();
            let mut last: Option<Kill> = None;
            for (grace, deleted) in kills {
                mailbox.kill(kill(grace, deleted));
                mailbox.sync();
                let now = mailbox.kill.clone().unwrap();
                if let Some(last) = last {
                    prop_assert!(now.deleted >= last.deleted);
                    if let Some(before) = last.grace {
                        prop_assert!(now.grace.unwrap() <= before);
                    }
                }
                last = Some(now);
            }
        }
    }
}
