//! Containers that are being terminated.

use std::{collections::BTreeMap, future::Future, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

/// The time for a container whose grace period cannot be read: the API's default grace period, and
/// some time for the runtime to recover.
const UNREAD: Duration = Duration::from_secs(60);
/// The time after the deadline for which an abandoned termination is remembered.
const MEMORY: Duration = Duration::from_secs(600);

/// The terminating containers by ID. The caller that started a termination may be cancelled: a sync
/// when its pod is deleted, a termination when the grace period is shortened. The termination
/// continues nonetheless: the hook runs once, the grace period counts from the first attempt, and
/// runtimes (containerd) send the stop signal once.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<BTreeMap<String, Ending>>);

/// The termination of one container.
#[derive(Debug)]
struct Ending {
    /// End of the grace period.
    deadline: Instant,
    /// Whether this is the container's own grace period rather than [`UNREAD`].
    is_read: bool,
    hook: Option<Hook>,
}

/// A `preStop` hook that was started.
#[derive(Debug)]
struct Hook {
    /// Closed when the hook has ended.
    ended: watch::Receiver<()>,
    _task: AbortOnDropHandle<()>,
}

impl Endings {
    /// Starts or continues the termination of a container. The grace period ends after `grace`, or
    /// at the deadline of a previous call if that is earlier; it replaces [`UNREAD`] in any case.
    pub(super) fn begin(&self, id: &str, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut endings = self.remembered();
        let ending = endings.entry(id.to_owned()).or_insert(Ending {
            deadline,
            is_read: true,
            hook: None,
        });
        if ending.is_read {
            ending.deadline = ending.deadline.min(deadline);
        } else {
            ending.deadline = deadline;
            ending.is_read = true;
        }
    }

    /// Starts the termination of a container whose grace period could not be read. Until [`UNREAD`]
    /// has passed, it counts as having time left.
    pub(super) fn begin_unread(&self, id: &str) {
        let deadline = Instant::now() + UNREAD;
        let mut endings = self.remembered();
        endings.entry(id.to_owned()).or_insert(Ending {
            deadline,
            is_read: false,
            hook: None,
        });
    }

    fn remembered(&self) -> MutexGuard<'_, BTreeMap<String, Ending>> {
        let now = Instant::now();
        let mut endings = self.0.lock();
        endings.retain(|_, ending| ending.deadline + MEMORY > now);
        endings
    }

    /// The rest of the grace period, rounded up to whole seconds as upstream.
    pub(super) fn left(&self, id: &str) -> Duration {
        let endings = self.0.lock();
        let ending = endings.get(id);
        let left = ending.map_or(Duration::ZERO, |ending| {
            ending.deadline.saturating_duration_since(Instant::now())
        });
        let begun = u64::from(left.subsec_nanos() > 0);
        Duration::from_secs(left.as_secs().saturating_add(begun))
    }

    /// Runs the hook of a terminating container, unless it was started before, and waits for it
    /// within the grace period. A hook that takes longer keeps running until the container has
    /// ended.
    pub(super) async fn hook(
        &self,
        id: &str,
        hook: impl Future<Output = ()> + Send + 'static,
    ) -> Waited {
        let mut ended = {
            let mut endings = self.0.lock();
            let Some(ending) = endings.get_mut(id) else {
                return Waited::UntilItsEnd;
            };
            let hook = ending.hook.get_or_insert_with(|| {
                let (running, ended) = watch::channel(());
                let task = tokio::spawn(async move {
                    hook.await;
                    drop(running);
                });
                Hook {
                    ended,
                    _task: AbortOnDropHandle::new(task),
                }
            });
            hook.ended.clone()
        };
        // No value is ever sent: `changed` returns when the sender is dropped.
        match tokio::time::timeout(self.left(id), ended.changed()).await {
            Ok(_) => Waited::UntilItsEnd,
            Err(_) => Waited::InVain,
        }
    }

    /// Forgets a container that has ended, and stops its hook.
    pub(super) fn finish(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// The outcome of waiting for a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    UntilItsEnd,
    /// The grace period ended first.
    InVain,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_time_that_is_yet_to_be_read_gives_way_to_the_one_that_was() {
        let endings = Endings::default();
        endings.begin_unread("a");
        tokio::time::advance(10 * SECOND).await;
        endings.begin_unread("a");
        assert_eq!(endings.left("a"), 50 * SECOND);
        endings.begin("a", 300 * SECOND);
        assert_eq!(endings.left("a"), 300 * SECOND);
        endings.begin_unread("a");
        assert_eq!(endings.left("a"), 300 * SECOND);
        endings.begin("a", 5 * SECOND);
        endings.begin("a", 20 * SECOND);
        assert_eq!(endings.left("a"), 5 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_read_is_not_waited_for_for_ever() {
        let endings = Endings::default();
        endings.begin_unread("a");
        tokio::time::advance(UNREAD).await;
        assert_eq!(endings.left("a"), Duration::ZERO);
    }
}
