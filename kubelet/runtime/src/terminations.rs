//! Containers that are being terminated.

use std::{collections::BTreeMap, future::Future, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

/// The time for a container whose grace period cannot be read: the API's default grace period, and
/// some time for the runtime to recover.
const UNKNOWN_GRACE: Duration = Duration::from_secs(60);
/// The time after the deadline for which an abandoned termination is remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);

/// The terminating containers by ID. The caller that started a termination may be cancelled: a sync
/// when its pod is deleted, a termination when the grace period is shortened. The termination
/// continues nonetheless: the hook runs once, the grace period counts from the first attempt, and
/// runtimes (containerd) send the stop signal once.
#[derive(Debug, Default)]
pub(super) struct Terminations(Mutex<BTreeMap<String, Termination>>);

/// The termination of one container.
#[derive(Debug)]
struct Termination {
    /// End of the grace period.
    deadline: Instant,
    /// Whether this is the container's own grace period rather than [`UNKNOWN_GRACE`].
    is_known: bool,
    hook: Option<Hook>,
}

/// A `preStop` hook that was started.
#[derive(Debug)]
struct Hook {
    /// Closed when the hook has ended.
    ended: watch::Receiver<()>,
    _task: AbortOnDropHandle<()>,
}

impl Terminations {
    /// Starts or continues the termination of a container. The grace period ends after `grace`, or
    /// at the deadline of a previous call if that is earlier; it replaces [`UNKNOWN_GRACE`] in any
    /// case.
    pub(super) fn begin(&self, id: &str, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut terminations = self.remembered();
        let termination = terminations.entry(id.to_owned()).or_insert(Termination {
            deadline,
            is_known: true,
            hook: None,
        });
        if termination.is_known {
            termination.deadline = termination.deadline.min(deadline);
        } else {
            termination.deadline = deadline;
            termination.is_known = true;
        }
    }

    /// Starts the termination of a container whose grace period could not be read. Until
    /// [`UNKNOWN_GRACE`] has passed, it counts as having time left.
    pub(super) fn begin_with_unknown_grace(&self, id: &str) {
        let deadline = Instant::now() + UNKNOWN_GRACE;
        let mut terminations = self.remembered();
        terminations.entry(id.to_owned()).or_insert(Termination {
            deadline,
            is_known: false,
            hook: None,
        });
    }

    fn remembered(&self) -> MutexGuard<'_, BTreeMap<String, Termination>> {
        let now = Instant::now();
        let mut terminations = self.0.lock();
        terminations.retain(|_, termination| termination.deadline + REMEMBERED_FOR > now);
        terminations
    }

    /// The rest of the grace period, rounded up to whole seconds as upstream.
    pub(super) fn left(&self, id: &str) -> Duration {
        let terminations = self.0.lock();
        let termination = terminations.get(id);
        let left = termination.map_or(Duration::ZERO, |termination| {
            termination
                .deadline
                .saturating_duration_since(Instant::now())
        });
        let rounding = u64::from(left.subsec_nanos() > 0);
        Duration::from_secs(left.as_secs().saturating_add(rounding))
    }

    /// Runs the hook of a terminating container, unless it was started before, and waits for it
    /// within the grace period. A hook that takes longer keeps running until the container has
    /// ended.
    pub(super) async fn hook(
        &self,
        id: &str,
        hook: impl Future<Output = ()> + Send + 'static,
    ) -> HookOutcome {
        let mut ended = {
            let mut terminations = self.0.lock();
            let Some(termination) = terminations.get_mut(id) else {
                return HookOutcome::Finished;
            };
            let hook = termination.hook.get_or_insert_with(|| {
                let (running, ended) = watch::channel(());
                let task = async move {
                    hook.await;
                    drop(running);
                };
                let task = tokio::spawn(task.in_current_span());
                Hook {
                    ended,
                    _task: AbortOnDropHandle::new(task),
                }
            });
            hook.ended.clone()
        };
        // No value is ever sent: `changed` returns when the sender is dropped.
        match tokio::time::timeout(self.left(id), ended.changed()).await {
            Ok(_) => HookOutcome::Finished,
            Err(_) => HookOutcome::TimedOut,
        }
    }

    /// Forgets a container that has ended, and stops its hook.
    pub(super) fn finish(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// The outcome of waiting for a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookOutcome {
    Finished,
    /// The grace period ended first.
    TimedOut,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_time_that_is_yet_to_be_read_gives_way_to_the_one_that_was() {
        let terminations = Terminations::default();
        terminations.begin_with_unknown_grace("a");
        tokio::time::advance(10 * SECOND).await;
        terminations.begin_with_unknown_grace("a");
        assert_eq!(terminations.left("a"), 50 * SECOND);
        terminations.begin("a", 300 * SECOND);
        assert_eq!(terminations.left("a"), 300 * SECOND);
        terminations.begin_with_unknown_grace("a");
        assert_eq!(terminations.left("a"), 300 * SECOND);
        terminations.begin("a", 5 * SECOND);
        terminations.begin("a", 20 * SECOND);
        assert_eq!(terminations.left("a"), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_read_is_not_waited_for_for_ever() {
        let terminations = Terminations::default();
        terminations.begin_with_unknown_grace("a");
        tokio::time::advance(UNKNOWN_GRACE).await;
        assert_eq!(terminations.left("a"), Duration::ZERO);
    }
}
