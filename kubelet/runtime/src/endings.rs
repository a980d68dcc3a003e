//! Ends of containers that are on their way.

use std::{collections::BTreeMap, future::Future, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

/// What a container is given whose own time cannot be read: as long as pods get unless they say
/// otherwise, and some time for the runtime to recover.
const UNREAD: Duration = Duration::from_secs(60);
/// For how long an end that nobody waits for any more is remembered beyond its time.
const MEMORY: Duration = Duration::from_secs(600);

/// How each container that was told to end does so, by id. Whoever told it may be gone: a
/// sync is given up when its pod is to end, and an end when it is to take less time. What
/// was begun holds nonetheless: a hook runs once, the grace period counts from the first
/// time, and runtimes (containerd) send no second signal.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<BTreeMap<String, Ending>>);

/// The end of one container.
#[derive(Debug)]
struct Ending {
    /// When its time is over.
    deadline: Instant,
    /// Whether that is its own time, and not [`UNREAD`].
    is_read: bool,
    hook: Option<Hook>,
}

/// A `preStop` hook that was begun.
#[derive(Debug)]
struct Hook {
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
    _task: AbortOnDropHandle<()>,
}

impl Endings {
    /// A container is to end within `grace`, or in what is left of the time that it was
    /// given before, if that is less.
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

    /// A container is to end within a time that is yet to be read. Nothing ends it by force
    /// meanwhile.
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

    /// The container's remaining time, rounded up to whole seconds as upstream.
    pub(super) fn left(&self, id: &str) -> Duration {
        let endings = self.0.lock();
        let ending = endings.get(id);
        let left = ending.map_or(Duration::ZERO, |ending| {
            ending.deadline.saturating_duration_since(Instant::now())
        });
        let begun = u64::from(left.subsec_nanos() > 0);
        Duration::from_secs(left.as_secs().saturating_add(begun))
    }

    /// Runs the hook of a container that is to end, unless it was begun before, and waits
    /// for its end, as long as the container has time. The hook of a container whose time
    /// is over runs on until the container has ended.
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
        // Nothing is ever sent: a change is the end.
        match tokio::time::timeout(self.left(id), ended.changed()).await {
            Ok(_) => Waited::UntilItsEnd,
            Err(_) => Waited::InVain,
        }
    }

    /// The container has ended: so does its hook.
    pub(super) fn finish(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// How a wait for a hook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    UntilItsEnd,
    /// Time ran out.
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
